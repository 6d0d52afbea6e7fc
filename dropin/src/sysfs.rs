//! Files of sysfs.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::convention::{Failure, OrMinusOne, OrNull, export};
use crate::environment::environment;

/// The path of a C string.
///
/// # Safety
///
/// The pointer is null or that of a C string, which stays unchanged for `'a`.
unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path, Failure> {
    if text.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by the contract.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes())))
}

export! {
    fn ibv_get_sysfs_path() -> OrNull<c_char> {
        Ok(environment().sysfs.as_ptr().cast_mut())
    }

    /// Reads a file into `into`, without the newline at its end and with a zero byte. Returns the length
    /// of the text. One that does not fit is a failure.
    fn ibv_read_sysfs_file(
        folder: *const c_char,
        file: *const c_char,
        into: *mut u8,
        size: usize,
    ) -> OrMinusOne {
        // SAFETY: the arguments are C strings.
        let path = unsafe { path(folder)?.join(path(file)?) };
        if into.is_null() {
            return Err(Failure::INVALID);
        }
        let mut text = Vec::new();
        // One byte more, to notice a longer file.
        let limit = u64::try_from(size).unwrap_or(u64::MAX).saturating_add(1);
        let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text));
        read.map_err(|error| Failure::of(&error))?;
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        let length = text.len();
        text.push(0);
        if text.len() > size {
            return Err(Failure::INVALID);
        }
        // SAFETY: the program has `size` bytes, which are enough.
        unsafe { into.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        c_int::try_from(length).map_err(|_| Failure::INVALID)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn file_is_read_without_its_newline_if_it_fits() {
        let folder = std::env::temp_dir().join(format!("bareverbs-dropin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "four\n").unwrap();
        let name = CString::new(folder.to_str().unwrap()).unwrap();
        let read = |file: &CStr, size: usize| {
            let mut bytes = [7; 8];
            // SAFETY: the strings and the array exist.
            let length =
                unsafe { ibv_read_sysfs_file(name.as_ptr(), file.as_ptr(), bytes.as_mut_ptr(), size) };
            (length, bytes)
        };
        assert_eq!(read(c"file", 8), (4, *b"four\0\x07\x07\x07"));
        assert_eq!(read(c"file", 5).0, 4);
        assert_eq!(read(c"file", 4), (-1, [7; 8]));
        assert_eq!(read(c"absent", 8).0, -1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
