//! Gives back the memory that starting the apps took: a supervisor idles for most of its life.

use crate::sys;

/// The program's own mappings whose pages are the same in its file, as start and length. A forked process has them at the same
/// places.
///
/// A mapping qualifies when it is not writable and the kernel counts no anonymous page in it, so nothing can be lost.
pub(crate) fn clean() -> Vec<(usize, usize)> {
    std::fs::read_to_string("/proc/self/smaps").map(|smaps| clean_mappings(&smaps)).unwrap_or_default()
}

/// Drops the pages of these; they come back, from the page cache, when touched.
pub(crate) fn drop_pages(mappings: &[(usize, usize)]) {
    for &(start, len) in mappings {
        sys::drop_clean_pages(start, len);
    }
}

fn clean_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(range) = header(line) {
            current = range;
        } else if line.split_whitespace().eq(["Anonymous:", "0", "kB"]) {
            found.extend(current.take());
        }
    }
    found
}

/// `Some(None)` for the first line of a mapping that does not qualify, `None` for a line that is no first line.
fn header(line: &str) -> Option<Option<(usize, usize)>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let permissions = fields.next()?;
    let file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((file && permissions.starts_with('r') && !permissions.contains('w')).then_some((start, end - start)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_clean_mappings_of_files_qualify() {
        let smaps = "\
00400000-00410000 r--p 00000000 fe:00 1  /x/stage1
Rss: 64 kB
Anonymous:             0 kB
00410000-00420000 r-xp 00010000 fe:00 1  /x/stage1
Anonymous:             0 kB
00420000-00430000 r--p 00020000 fe:00 1  /x/stage1
Anonymous:             4 kB
00430000-00440000 rw-p 00030000 fe:00 1  /x/stage1
Anonymous:             0 kB
00500000-00510000 r--p 00000000 00:00 0
Anonymous:             0 kB
7fff0000-7fff2000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
";
        assert_eq!(super::clean_mappings(smaps), [(0x40_0000, 0x1_0000), (0x41_0000, 0x1_0000)]);
    }
}
