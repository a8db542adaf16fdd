//! Detects images for another architecture, or a variant of the host's that its processor does not support. They run
//! only if the kernel has an emulator registered (binfmt_misc).

use std::path::Path;

use gantry_fetch::Platform;
use gantry_fetch::config::ImageConfig;

/// The kernel's list of registered formats (Documentation/admin-guide/binfmt-misc.rst).
const BINFMT: &str = "/proc/sys/fs/binfmt_misc";

/// The platform of an image, if this host cannot execute its programs.
pub(crate) fn unrunnable_platform(config: &ImageConfig) -> Option<Platform> {
    config.platform().filter(|platform| !can_run(platform))
}

/// Whether this host executes programs for this platform.
pub(crate) fn can_run(platform: &Platform) -> bool {
    platform.fitness(&Platform::host()).is_some() || is_emulated(platform)
}

fn is_emulated(platform: &Platform) -> bool {
    platform.os == Platform::host().os && has_emulator(Path::new(BINFMT), &platform.architecture)
}

/// Whether the kernel has an emulator for programs of an architecture that works without its file being in the app's
/// root: qemu-user registers one with the flag F, which opens the file once and for all.
fn has_emulator(binfmt: &Path, architecture: &str) -> bool {
    let name = match architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        "386" => "i386",
        "loong64" => "loongarch64",
        plain if plain.bytes().all(|byte| byte.is_ascii_alphanumeric()) => plain,
        _ => return false,
    };
    // An unreadable entry counts as absent.
    let Ok(text) = std::fs::read_to_string(binfmt.join(format!("qemu-{name}"))) else { return false };
    let fixed = |line: &str| line.strip_prefix("flags:").is_some_and(|flags| flags.contains('F'));
    text.lines().next() == Some("enabled") && text.lines().any(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runnable_platforms_are_recognized() {
        let config = |os: &str, architecture: &str| ImageConfig {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            ..ImageConfig::default()
        };
        let host = Platform::host();
        for (config, runs) in [
            (config(&host.os, &host.architecture), true),
            (config("", ""), true),
            (config("windows", &host.architecture), false),
            (config("linux", "../../etc"), false),
            (config("linux", "mips64le"), false),
        ] {
            assert_eq!(unrunnable_platform(&config).is_none(), runs, "{config:?}");
        }
    }

    #[test]
    fn registered_emulators_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, want) in [
            ("aarch64", "enabled\ninterpreter /usr/bin/qemu-aarch64\nflags: OCF\n", true),
            ("aarch64", "disabled\ninterpreter /usr/bin/qemu-aarch64\nflags: OCF\n", false),
            ("aarch64", "enabled\ninterpreter /usr/bin/qemu-aarch64\nflags: \n", false),
        ] {
            std::fs::write(dir.path().join(format!("qemu-{name}")), text).unwrap();
            assert_eq!(has_emulator(dir.path(), "arm64"), want, "{text}");
        }
        assert!(!has_emulator(dir.path(), "riscv64"));
    }
}
