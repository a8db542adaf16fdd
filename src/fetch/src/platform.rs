//! Platforms: operating system, architecture and variant, and how well an image for one runs on this host.

use std::fmt;

use gantry_model::id::shown;

/// Operating system, architecture and variant in Go's names (OCI image specification, image-index.md, "platform").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`, `arm` …
    pub architecture: String,
    /// `v8` of arm64, `v7` of arm, `v2` to `v4` of amd64; none for the baseline.
    pub variant: Option<String>,
}

impl From<&oci_spec::image::Platform> for Platform {
    fn from(platform: &oci_spec::image::Platform) -> Self {
        Self {
            os: platform.os().to_string(),
            architecture: platform.architecture().to_string(),
            variant: platform.variant().clone(),
        }
    }
}

impl Platform {
    /// The platform of this host: the architecture of this program, in the newest variant that the processor supports.
    #[must_use]
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", amd64_variant()),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some("v7")),
            "x86" => ("386", None),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    /// How well an image for `self` runs on `host`: `None` not at all, more is better. Within an architecture an older
    /// variant runs on a newer host, never the reverse; no variant means the baseline.
    #[must_use]
    pub fn fitness(&self, host: &Self) -> Option<u32> {
        if self.os != host.os || self.architecture != host.architecture {
            return None;
        }
        let (mine, most) = (self.level()?, host.level()?);
        (mine <= most).then_some(mine)
    }

    /// The variant as a number: `v7` is 7. An unknown variant has none and runs on no host.
    fn level(&self) -> Option<u32> {
        match self.variant.as_deref().filter(|v| !v.is_empty()) {
            Some(variant) => variant.strip_prefix('v').unwrap_or(variant).parse().ok(),
            None => Some(match self.architecture.as_str() {
                "arm64" => 8,
                "arm" => 7,
                _ => 1,
            }),
        }
    }
}

/// The newest variant of x86-64 that the processor and the kernel support (x86-64 psABI, "Micro-Architecture Levels");
/// none for the baseline.
#[cfg(target_arch = "x86_64")]
fn amd64_variant() -> Option<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    // LAHF of v2 cannot be asked for; all processors with SSE4.2 have it.
    let v2 = has!("cmpxchg16b") && has!("popcnt") && has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2");
    let v3 = v2
        && (has!("avx") && has!("avx2") && has!("bmi1") && has!("bmi2"))
        && (has!("f16c") && has!("fma") && has!("lzcnt") && has!("movbe"));
    let v4 = v3 && (has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl"));
    match (v2, v3, v4) {
        (_, _, true) => Some("v4"),
        (_, true, _) => Some("v3"),
        (true, ..) => Some("v2"),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn amd64_variant() -> Option<&'static str> {
    None
}

/// A text is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a platform: expected OS/ARCHITECTURE[/VARIANT], such as linux/arm64 or linux/arm/v7", shown(.0))]
pub struct PlatformError(String);

impl gantry_model::Kind for PlatformError {
    fn kind(&self) -> gantry_model::ErrorKind {
        gantry_model::ErrorKind::Invalid
    }
}

impl std::str::FromStr for Platform {
    type Err = PlatformError;

    /// Parses `OS/ARCHITECTURE[/VARIANT]`, or an architecture alone, which means Linux; also with the kernel's names
    /// for architectures (`x86_64`, `aarch64`).
    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let refuse = || PlatformError(text.to_owned());
        let parts: Vec<&str> = text.split('/').collect();
        let word = |part: &&str| {
            (1..=32).contains(&part.len())
                && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'.' | b'-'))
        };
        if !parts.iter().all(word) {
            return Err(refuse());
        }
        let (os, architecture, variant) = match parts[..] {
            ["linux" | "windows" | "darwin" | "freebsd"] => return Err(refuse()),
            [architecture] => ("linux", architecture, None),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => return Err(refuse()),
        };
        let (architecture, variant) = match architecture {
            "x86_64" => ("amd64", variant),
            "aarch64" => ("arm64", variant),
            "armhf" => ("arm", variant.or(Some("v7"))),
            "i386" => ("386", variant),
            other => (other, variant),
        };
        let platform =
            Self { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) };
        // A variant that runs on no host is a mistake.
        if platform.level().is_none() { Err(refuse()) } else { Ok(platform) }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", shown(&self.os), shown(&self.architecture))?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{}", shown(variant)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_parsed() {
        for (text, want) in [
            ("linux/amd64", Some("linux/amd64")),
            ("arm64", Some("linux/arm64")),
            ("linux/aarch64/v8", Some("linux/arm64/v8")),
            ("linux/arm/v7", Some("linux/arm/v7")),
            ("windows/x86_64", Some("windows/amd64")),
            ("linux", None),
            ("", None),
            ("/", None),
            ("linux/", None),
            ("linux/amd64/", None),
            ("linux/arm/strange", None),
            ("a/b/c/d", None),
            ("LINUX/AMD64", None),
        ] {
            assert_eq!(text.parse::<Platform>().ok().map(|it| it.to_string()).as_deref(), want, "{text}");
        }
    }

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next();
        Platform { os: next().unwrap(), architecture: next().unwrap(), variant: next() }
    }

    #[test]
    fn compatible_platforms_are_ranked() {
        for (image, host, want) in [
            ("linux/amd64", "linux/amd64", Some(1)),
            ("linux/amd64/v3", "linux/amd64", None),
            ("linux/amd64/v2", "linux/amd64/v3", Some(2)),
            ("linux/arm64", "linux/arm64/v8", Some(8)),
            ("linux/arm64/v8", "linux/arm64", Some(8)),
            ("linux/arm/v6", "linux/arm/v7", Some(6)),
            ("linux/arm/v7", "linux/arm/v6", None),
            ("linux/arm64", "linux/amd64", None),
            ("windows/amd64", "linux/amd64", None),
            ("unknown/unknown", "linux/amd64", None),
            ("linux/amd64/strange", "linux/amd64", None),
        ] {
            assert_eq!(platform(image).fitness(&platform(host)), want, "{image} on {host}");
        }
    }
}
