//! Hints for commands of docker, podman, kubectl and rkt that gantry lacks or names differently.

/// Hints by word and by the command that the word follows ("" for the first word).
const WORDS: &[(&str, &str, &str)] = &[
    ("", "create", "'gantry prepare IMAGE' makes a pod without starting it"),
    ("", "system", "'gantry prune' removes what is not in use, 'gantry df' shows sizes, 'gantry info' the host"),
    ("", "export", "'gantry cp POD:/ -' writes the files of an app as a tar archive"),
    (
        "",
        "import",
        "'gantry fetch oci-archive:FILE' and 'gantry fetch docker-archive:FILE' take images; a bare file system cannot \
                    be imported",
    ),
    ("", "push", "images are fetched only: use skopeo copy, or 'buildah push'"),
    ("", "commit", "images are not made here: use buildah or docker build"),
    ("", "build", "images are not made here: use buildah or docker build, then 'gantry fetch'"),
    ("", "tag", "'gantry image tag' gives an image further names"),
    ("", "history", "'gantry image history IMAGE' shows how an image was made"),
    ("", "search", "registries cannot be searched: use skopeo list-tags, or the registry's web page"),
    ("", "container", "pods are handled directly: 'gantry list', 'gantry run', 'gantry rm' …"),
    ("", "pod", "pods are handled directly: 'gantry list', 'gantry run', 'gantry rm' …"),
    ("", "pods", "'gantry list' lists pods"),
    ("", "get", "'gantry list' lists pods, 'gantry image list' images, 'gantry network list' networks"),
    ("", "describe", "'gantry inspect POD' shows all that is known of a pod, 'gantry status POD' its state"),
    ("", "apply", "'gantry run --pod-manifest=FILE' runs what 'gantry cat-manifest' prints"),
    (
        "",
        "play",
        "'gantry run --pod-manifest=FILE' runs what 'gantry cat-manifest' prints; Kubernetes' YAML is not read",
    ),
    (
        "",
        "kube",
        "'gantry run --pod-manifest=FILE' runs what 'gantry cat-manifest' prints; Kubernetes' YAML is not read",
    ),
    (
        "",
        "compose",
        "several apps that share a network are one pod: 'gantry run IMAGE -- ARG --- IMAGE'; compose files are not read",
    ),
    ("", "healthcheck", "health checks run by themselves: 'gantry status POD' shows their results"),
    ("", "delete", "'gantry rm POD' removes a pod"),
    ("", "remove", "'gantry rm POD' removes a pod"),
    ("", "show", "'gantry status POD' shows a pod's state, 'gantry inspect POD' everything"),
    ("", "trust", "images are verified by their digest; there are no keys"),
    ("", "metadata-service", "apps get what they need in environment variables and files"),
    ("", "api-service", "it is a program of its own: gantryd"),
    ("", "daemon", "it is a program of its own: gantryd"),
    ("", "config", "see /etc/gantry/config.toml, and 'man gantry'"),
    ("", "shell", "'gantry enter POD' starts a shell in an app"),
    ("", "ssh", "'gantry enter POD' starts a shell in an app"),
    ("image", "verify", "'gantry doctor --deep' reads every image in the store and compares it with its digests"),
    ("image", "prune", "'gantry image gc' removes images that are not in use"),
    ("image", "push", "images are fetched only: use skopeo copy, or 'buildah push'"),
    ("image", "build", "images are not made here: use buildah or docker build, then 'gantry fetch'"),
    (
        "image",
        "import",
        "'gantry fetch docker-archive:FILE' or 'gantry fetch oci-archive:FILE' takes an image from a file",
    ),
    ("image", "export", "'gantry image save IMAGE' writes an archive"),
    ("image", "search", "registries cannot be searched: use skopeo list-tags, or the registry's web page"),
    ("network", "create", NETWORK_FILE),
    ("network", "rm", "remove its file from /etc/gantry/net.d; bridges and rules go with the last pod"),
    ("network", "remove", "remove its file from /etc/gantry/net.d; bridges and rules go with the last pod"),
    ("network", "prune", "'gantry gc' removes what ended pods left of their networks"),
    ("network", "connect", "a pod's networks are given with 'gantry run --net'"),
    ("network", "disconnect", "a pod's networks are given with 'gantry run --net'"),
    ("volume", "gc", "'gantry volume prune' removes volumes that no pod mounts"),
];

const NETWORK_FILE: &str = "a network is a CNI file in /etc/gantry/net.d: 'man gantry', NETWORKS";

/// The hint for this word after the command `group`.
pub(crate) fn hint(group: &str, word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(of, name, _)| *of == group && *name == word).map(|(_, _, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands that a hint recommends: the words after `gantry` in quotes.
    fn advised(text: &str) -> impl Iterator<Item = Vec<&str>> {
        text.split("'gantry ").skip(1).map(|rest| rest.split(['\'', ' ']).take(2).collect())
    }

    #[test]
    fn suggested_commands_exist() {
        let root = crate::cli::command();
        for (group, word, text) in WORDS {
            assert!(!text.ends_with('.') && !text.contains("  "), "{group} {word}: {text}");
            let parent = if group.is_empty() { Some(&root) } else { root.find_subcommand(group) };
            assert!(parent.is_some_and(|parent| parent.find_subcommand(word).is_none()), "{group} {word} exists");
            for words in advised(text) {
                let command = root.find_subcommand(words[0]);
                assert!(command.is_some(), "{group} {word}: 'gantry {}' does not exist", words[0]);
                if let Some(group) = command.filter(|command| command.has_subcommands()) {
                    assert!(group.find_subcommand(words[1]).is_some(), "{word}: {words:?} does not exist");
                }
            }
        }
        let mut known: Vec<_> = WORDS.iter().map(|(group, word, _)| (group, word)).collect();
        known.sort_unstable();
        assert!(known.windows(2).all(|pair| pair[0] != pair[1]), "a word is listed twice");
    }
}
