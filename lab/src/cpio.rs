//! Writes cpio archives in the format of an initramfs ("newc").

/// An archive under construction.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

impl Default for Archive {
    fn default() -> Self {
        Self::new()
    }
}

impl Archive {
    /// An empty archive.
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), inode: 0 }
    }

    /// Adds a folder; its parents must have been added before.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, (0, 0), &[]);
    }

    /// Adds an executable file.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// Adds a character device node.
    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, DEVICE, (major, minor), &[]);
    }

    /// Ends the archive and returns its bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let path = path.trim_start_matches('/');
        let links = if mode == FOLDER { 2 } else { 1 };
        let size = u32::try_from(content.len()).expect("a file in an initramfs is below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.inode += 1;
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back by the format's own rules.
    fn entries(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701");
            assert_eq!(at % 4, 0, "headers are aligned");
            let field = |index: usize| {
                let start = at + 6 + 8 * index;
                u32::from_str_radix(std::str::from_utf8(&bytes[start..start + 8]).unwrap(), 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name_at = at + 110;
            let name = String::from_utf8(bytes[name_at..name_at + name_size - 1].to_vec()).unwrap();
            assert_eq!(bytes[name_at + name_size - 1], 0);
            let content_at = (name_at + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((name, mode, bytes[content_at..content_at + size].to_vec()));
            at = (content_at + size).next_multiple_of(4);
        }
    }

    #[test]
    fn cpio_entries_round_trip() {
        let mut archive = Archive::new();
        archive.folder("/lab");
        archive.file("/lab/a", b"12345");
        archive.file("/init", b"");
        let found = entries(&archive.finish());
        assert_eq!(found[0], ("lab".into(), FOLDER, vec![]));
        assert_eq!(found[1], ("lab/a".into(), PROGRAM, b"12345".to_vec()));
        assert_eq!(found[2].0, "init");
    }

    #[test]
    fn empty_cpio_has_only_trailer() {
        let bytes = Archive::new().finish();
        assert!(entries(&bytes).is_empty());
        assert_eq!(bytes.len(), 124);
    }
}
