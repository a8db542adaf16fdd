//! The image of most tests.

use std::io;
use std::path::Path;

use crate::image::Image;
use crate::layer::Layer;
use crate::write::{write_docker_archive, write_layout, write_oci_archive};

/// The name of the standard image in archives.
pub const STANDARD_NAME: &str = "localhost/gantry-fixture:latest";

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/app
daemon:x:1:1:daemon:/:/bin/app
app:x:1000:1000:the app's user:/home/app:/bin/app
other:x:1001:1001::/home/other:/bin/app
nohome:x:1002:1002:::
nobody:x:65534:65534:nobody:/:/bin/app
";

const GROUP: &str = "\
root:x:0:
daemon:x:1:
staff:x:50:app,other
app:x:1000:
other:x:1001:
nohome:x:1002:
extra:x:2000:app
nogroup:x:65534:
";

/// The verbs that also have links of their own below /bin.
const LINKS: [&str; 8] = ["true", "false", "cat", "ls", "env", "sleep", "stat", "ids"];

/// The standard image around the fixture app: two layers; `/bin/app` and links to it; users `app` (1000, in groups
/// staff and extra), `other` (1001), `nohome`; files that cannot be executed; links that lead outside; a whiteout. Its
/// command is `/bin/app args from image`.
///
/// # Errors
/// A compressor fails, which does not happen in memory.
pub fn standard_image(app: &[u8]) -> io::Result<Image> {
    Image::builder()
        .layer(base(app))
        .layer(top())
        .entrypoint(&["/bin/app"])
        .cmd(&["args", "from", "image"])
        .env("PATH", "/usr/local/bin:/bin")
        .env("FIXTURE", "standard")
        .label("org.opencontainers.image.title", "gantry-fixture")
        .port("8080/tcp")
        .build()
}

fn base(app: &[u8]) -> Layer {
    let mut layer = Layer::new();
    for (path, mode) in [("bin", 0o755), ("dev", 0o755), ("etc", 0o755), ("proc", 0o555), ("sys", 0o555)] {
        layer = layer.dir(path, mode);
    }
    layer = layer
        .dir("tmp", 0o1777)
        .dir("root", 0o700)
        .dir("home", 0o755)
        .owner(1000, 1000)
        .dir("home/app", 0o755)
        .owner(1001, 1001)
        .dir("home/other", 0o700)
        .owner(1000, 1000)
        .dir("data", 0o755)
        .owner(1000, 50)
        .file("data/owned", "owned by app:staff\n", 0o640)
        .file("etc/passwd", PASSWD, 0o644)
        .file("etc/group", GROUP, 0o644)
        .file("bin/app", app, 0o755)
        .hardlink("bin/app-hard", "bin/app")
        .symlink("bin/app-link", "app")
        .symlink("bin/app-absolute", "/bin/app");
    for name in LINKS {
        layer = layer.symlink(format!("bin/{name}"), "app");
    }
    layer
        .dir("lower", 0o755)
        .file("lower/kept", "from the lower layer\n", 0o644)
        .file("lower/removed", "nobody should see this\n", 0o644)
        .dir("replaced", 0o755)
        .file("replaced/old", "nobody should see this\n", 0o644)
}

fn top() -> Layer {
    Layer::new()
        .file("bin/notexec", "a file that is not executable\n", 0o644)
        .file("bin/garbage", "an executable that is no program\n", 0o755)
        .file("bin/noint", "#!/does/not/exist\n", 0o755)
        .file("bin/script", "#!/bin/app args\n", 0o755)
        .file("bin/rootonly", "#!/bin/app args\n", 0o700)
        .dir("bin/directory", 0o755)
        .symlink("bin/dangling", "/does/not/exist")
        .symlink("bin/loop", "loop")
        .symlink("escape", "/../../../../../../etc")
        .symlink("procself", "/proc/self/root")
        .whiteout("lower/removed")
        .dir("replaced", 0o755)
        .opaque("replaced")
        .file("replaced/new", "from the upper layer\n", 0o644)
        .file("etc/gantry-fixture", "standard\n", 0o644)
}

/// Writes the standard image into `dir`: `layout/` (tag `latest`), `oci.tar` and `docker.tar`.
///
/// # Errors
/// When a file cannot be written.
pub fn write_standard(dir: &Path, app: &[u8]) -> io::Result<Image> {
    let image = standard_image(app)?;
    std::fs::create_dir_all(dir)?;
    write_layout(&dir.join("layout"), &[(&image, "latest")])?;
    write_oci_archive(&dir.join("oci.tar"), &[(&image, "latest")])?;
    write_docker_archive(&dir.join("docker.tar"), &image, STANDARD_NAME)?;
    Ok(image)
}
