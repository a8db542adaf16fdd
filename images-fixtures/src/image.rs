//! One image: layers and a configuration (OCI image specification, config.md and manifest.md).

use serde_json::{Map, Value, json};

use crate::layer::{Compression, Layer, PackedLayer};

/// The specification whose media types an image uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// OCI image specification.
    #[default]
    Oci,
    /// Docker image manifest version 2, schema 2.
    Docker,
}

type Edit = Box<dyn FnOnce(&mut Value)>;

/// A builder of an image.
#[derive(Default)]
pub struct ImageBuilder {
    layers: Vec<Layer>,
    config: Map<String, Value>,
    env: Vec<String>,
    ports: Map<String, Value>,
    volumes: Map<String, Value>,
    labels: Map<String, Value>,
    platform: Option<(String, String)>,
    style: Style,
    edit_config: Option<Edit>,
    edit_manifest: Option<Edit>,
}

/// A finished image in memory: bytes and digests.
#[derive(Debug, Clone)]
pub struct Image {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Its media type.
    pub manifest_type: &'static str,
    /// The configuration.
    pub config: Vec<u8>,
    /// The layers, bottom first.
    pub layers: Vec<PackedLayer>,
    /// Operating system and architecture.
    pub platform: (String, String),
}

impl Image {
    /// Begins an image for linux/amd64.
    #[must_use]
    pub fn builder() -> ImageBuilder {
        ImageBuilder::default()
    }

    /// The digest of the manifest: the image's identity.
    #[must_use]
    pub fn id(&self) -> String {
        crate::digest(&self.manifest)
    }

    /// Every blob with its digest: manifest, configuration, layers.
    #[must_use]
    pub fn blobs(&self) -> Vec<(String, &[u8])> {
        let layers = self.layers.iter().map(|layer| layer.blob.as_slice());
        [self.manifest.as_slice(), self.config.as_slice()]
            .into_iter()
            .chain(layers)
            .map(|bytes| (crate::digest(bytes), bytes))
            .collect()
    }

    /// The descriptor of the manifest, as part of an index.
    #[must_use]
    pub fn descriptor(&self) -> Value {
        json!({
            "digest": self.id(),
            "mediaType": self.manifest_type,
            "platform": { "architecture": self.platform.1, "os": self.platform.0 },
            "size": self.manifest.len(),
        })
    }
}

impl ImageBuilder {
    /// Adds a layer on top.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// `Entrypoint`.
    #[must_use]
    pub fn entrypoint(self, words: &[&str]) -> Self {
        self.set("Entrypoint", json!(words))
    }

    /// `Cmd`.
    #[must_use]
    pub fn cmd(self, words: &[&str]) -> Self {
        self.set("Cmd", json!(words))
    }

    /// One entry of `Env`.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push(format!("{key}={value}"));
        self
    }

    /// `User`.
    #[must_use]
    pub fn user(self, user: &str) -> Self {
        self.set("User", json!(user))
    }

    /// `WorkingDir`.
    #[must_use]
    pub fn workdir(self, path: &str) -> Self {
        self.set("WorkingDir", json!(path))
    }

    /// `StopSignal`.
    #[must_use]
    pub fn stop_signal(self, signal: &str) -> Self {
        self.set("StopSignal", json!(signal))
    }

    /// One entry of `Volumes`.
    #[must_use]
    pub fn volume(mut self, path: &str) -> Self {
        self.volumes.insert(path.to_owned(), json!({}));
        self
    }

    /// One entry of `ExposedPorts`, such as `80/tcp`.
    #[must_use]
    pub fn port(mut self, port: &str) -> Self {
        self.ports.insert(port.to_owned(), json!({}));
        self
    }

    /// One entry of `Labels`.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// Operating system and architecture, in Go's terms.
    #[must_use]
    pub fn platform(mut self, os: &str, architecture: &str) -> Self {
        self.platform = Some((os.to_owned(), architecture.to_owned()));
        self
    }

    /// The specification of the media types.
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Edits the configuration before its digest is computed, for invalid images.
    #[must_use]
    pub fn edit_config(mut self, edit: impl FnOnce(&mut Value) + 'static) -> Self {
        self.edit_config = Some(Box::new(edit));
        self
    }

    /// Edits the manifest before its digest is computed, for invalid images.
    #[must_use]
    pub fn edit_manifest(mut self, edit: impl FnOnce(&mut Value) + 'static) -> Self {
        self.edit_manifest = Some(Box::new(edit));
        self
    }

    /// Packs the layers and computes all digests.
    ///
    /// # Errors
    /// A compressor fails, which does not happen in memory.
    pub fn build(mut self) -> std::io::Result<Image> {
        let layers = self.layers.iter().map(Layer::pack).collect::<std::io::Result<Vec<_>>>()?;
        let platform = self.platform.take().unwrap_or_else(|| ("linux".to_owned(), "amd64".to_owned()));
        let mut config = self.config_json(&layers, &platform);
        if let Some(edit) = self.edit_config.take() {
            edit(&mut config);
        }
        let config = config.to_string().into_bytes();
        let mut manifest = manifest_json(self.style, &config, &layers);
        if let Some(edit) = self.edit_manifest.take() {
            edit(&mut manifest);
        }
        let manifest_type = media_types(self.style).manifest;
        Ok(Image { manifest: manifest.to_string().into_bytes(), manifest_type, config, layers, platform })
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    fn config_json(&mut self, layers: &[PackedLayer], platform: &(String, String)) -> Value {
        let mut config = std::mem::take(&mut self.config);
        config.insert("Env".to_owned(), json!(self.env));
        for (key, map) in [("ExposedPorts", &self.ports), ("Labels", &self.labels), ("Volumes", &self.volumes)] {
            if !map.is_empty() {
                config.insert(key.to_owned(), Value::Object(map.clone()));
            }
        }
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let history: Vec<Value> = layers
            .iter()
            .map(|_| json!({ "created": "2024-01-01T00:00:00Z", "created_by": "gantry-fixtures" }))
            .collect();
        json!({
            "architecture": platform.1,
            "config": config,
            "created": "2024-01-01T00:00:00Z",
            "history": history,
            "os": platform.0,
            "rootfs": { "diff_ids": diff_ids, "type": "layers" },
        })
    }
}

/// The media types of a style.
pub(crate) struct MediaTypes {
    pub(crate) manifest: &'static str,
    pub(crate) config: &'static str,
    gzip: &'static str,
    zstd: &'static str,
    plain: &'static str,
}

pub(crate) fn media_types(style: Style) -> MediaTypes {
    match style {
        Style::Oci => MediaTypes {
            manifest: "application/vnd.oci.image.manifest.v1+json",
            config: "application/vnd.oci.image.config.v1+json",
            gzip: "application/vnd.oci.image.layer.v1.tar+gzip",
            zstd: "application/vnd.oci.image.layer.v1.tar+zstd",
            plain: "application/vnd.oci.image.layer.v1.tar",
        },
        Style::Docker => MediaTypes {
            manifest: "application/vnd.docker.distribution.manifest.v2+json",
            config: "application/vnd.docker.container.image.v1+json",
            gzip: "application/vnd.docker.image.rootfs.diff.tar.gzip",
            zstd: "application/vnd.docker.image.rootfs.diff.tar.zstd",
            plain: "application/vnd.docker.image.rootfs.diff.tar",
        },
    }
}

impl MediaTypes {
    pub(crate) fn layer(&self, compression: Compression) -> &'static str {
        match compression {
            Compression::Gzip => self.gzip,
            Compression::Zstd => self.zstd,
            Compression::Plain => self.plain,
        }
    }
}

fn manifest_json(style: Style, config: &[u8], layers: &[PackedLayer]) -> Value {
    let types = media_types(style);
    let descriptor =
        |media: &str, bytes: &[u8]| json!({ "digest": crate::digest(bytes), "mediaType": media, "size": bytes.len() });
    let layers: Vec<Value> =
        layers.iter().map(|layer| descriptor(types.layer(layer.compression), &layer.blob)).collect();
    json!({
        "config": descriptor(types.config, config),
        "layers": layers,
        "mediaType": types.manifest,
        "schemaVersion": 2,
    })
}
