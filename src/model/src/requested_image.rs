//! The image of an app as its user has written it.

use std::fmt;

/// The image of an app as its user has written it, for people to read. It is never empty; whether it is a reference
/// ([`crate::ImageRef`]) is checked when it is looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestedImage(String);

impl RequestedImage {
    /// The image that this text names; `None`: the text is empty.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        (!text.is_empty()).then_some(Self(text))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<RequestedImage> for String {
    fn from(image: RequestedImage) -> Self {
        image.0
    }
}
