//! Memory: /proc/meminfo, in KiB as the kernel prints it.

use std::collections::HashMap;

use gantry_proto::talos::machine::{MemInfo, Memory};
use tonic::Status;

/// Reads the memory of the host.
///
/// # Errors
/// `INTERNAL` if the file cannot be read.
pub(in super::super) fn read() -> Result<Memory, Status> {
    let text = std::fs::read_to_string("/proc/meminfo")
        .map_err(|error| Status::internal(format!("cannot read /proc/meminfo: {error}")))?;
    Ok(Memory { metadata: None, meminfo: Some(parse(&text)) })
}

/// Parses `Name(part):  123 kB` lines. The fields of the message have the names of the file, in lower case and without
/// punctuation; a line that the kernel does not print is 0.
fn parse(text: &str) -> MemInfo {
    let mut lines: HashMap<String, u64> = HashMap::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let name = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let value = value.split_whitespace().next().and_then(|value| value.parse().ok());
        lines.extend(value.map(|value| (name, value)));
    }
    macro_rules! fields {
        ($($name:ident),* $(,)?) => {
            MemInfo { $($name: lines.get(stringify!($name)).copied().unwrap_or(0)),* }
        };
    }
    fields!(
        memtotal,
        memfree,
        memavailable,
        buffers,
        cached,
        swapcached,
        active,
        inactive,
        activeanon,
        inactiveanon,
        activefile,
        inactivefile,
        unevictable,
        mlocked,
        swaptotal,
        swapfree,
        dirty,
        writeback,
        anonpages,
        mapped,
        shmem,
        slab,
        sreclaimable,
        sunreclaim,
        kernelstack,
        pagetables,
        nfsunstable,
        bounce,
        writebacktmp,
        commitlimit,
        committedas,
        vmalloctotal,
        vmallocused,
        vmallocchunk,
        hardwarecorrupted,
        anonhugepages,
        shmemhugepages,
        shmempmdmapped,
        cmatotal,
        cmafree,
        hugepagestotal,
        hugepagesfree,
        hugepagesrsvd,
        hugepagessurp,
        hugepagesize,
        directmap4k,
        directmap2m,
        directmap1g,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _any = parse(&text);
        }

        #[test]
        fn printed_values_are_parsed(total: u64, anon: u64, noise in "[ -~]{0,40}") {
            let memory = parse(&format!("MemTotal:  {total} kB\nNoise {noise}\nActive(anon): {anon} kB\n"));
            prop_assert_eq!((memory.memtotal, memory.activeanon), (total, anon));
        }
    }

    #[test]
    fn lines_become_fields() {
        let memory =
            parse("MemTotal:  24 kB\nActive(anon):  7 kB\nHugePages_Total: 3\nDirectMap4k:  5 kB\nbroken\nX: y\n");
        assert_eq!((memory.memtotal, memory.activeanon, memory.hugepagestotal, memory.directmap4k), (24, 7, 3, 5));
        assert_eq!(memory.memfree, 0);
    }

    #[test]
    fn this_host_has_memory() {
        let memory = read().unwrap().meminfo.unwrap();
        assert!(memory.memtotal > memory.memfree && memory.memfree > 0);
    }
}
