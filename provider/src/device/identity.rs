//! Checks that a descriptor refers to a uverbs character device.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, fstat, major, minor, statfs};

use super::{IoctlError, OpenError};

/// Device numbers that the kernel reserves for uverbs: `IB_UVERBS_BASE_DEV` and
/// `IB_UVERBS_NUM_FIXED_MINOR` in `core/uverbs_main.c`. Further devices get dynamic numbers.
const FIXED_MAJOR: u32 = 231;
const FIXED_MINORS: std::ops::Range<u32> = 192..224;

/// `SYSFS_MAGIC` in `linux/magic.h`.
const SYSFS_MAGIC: u32 = 0x6265_6572;

/// The sysfs class of uverbs devices.
const CLASS: &str = "infiniband_verbs";

/// Fails unless `fd` refers to a uverbs character device.
pub(super) fn check_uverbs(fd: impl AsFd) -> Result<(), OpenError> {
    let found = fstat(fd).map_err(|errno| IoctlError::new("fstat", errno))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice {
        return Err(OpenError::NotUverbs);
    }
    let number = (major(found.st_rdev), minor(found.st_rdev));
    if is_fixed(number) {
        return Ok(());
    }
    let root = Path::new("/sys");
    check_class(number, is_sysfs(root).then_some(root))
}

fn is_fixed((major, minor): (u32, u32)) -> bool {
    major == FIXED_MAJOR && FIXED_MINORS.contains(&minor)
}

fn is_sysfs(root: &Path) -> bool {
    statfs(root).is_ok_and(|found| found.f_type as u32 == SYSFS_MAGIC)
}

/// Fails unless sysfs at `root` lists the character device with this number in the class.
fn check_class((major, minor): (u32, u32), root: Option<&Path>) -> Result<(), OpenError> {
    let unidentified = OpenError::Unidentified { major, minor };
    let root = root.ok_or(unidentified)?;
    match fs::read_link(root.join(format!("dev/char/{major}:{minor}/subsystem"))) {
        Ok(class) if class.ends_with(CLASS) => Ok(()),
        Ok(_) => Err(OpenError::NotUverbs),
        // sysfs lists every uverbs device.
        Err(error) if error.kind() == ErrorKind::NotFound => Err(OpenError::NotUverbs),
        Err(_) => Err(unidentified),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn fixed_numbers_of_uverbs_devices_are_recognized() {
        assert!(is_fixed((231, 192)) && is_fixed((231, 223)));
        // `umad0`, `issm0`, the numbers next to the range, and other majors.
        for other in [(231, 0), (231, 64), (231, 191), (231, 224), (1, 192), (230, 192), (232, 192)] {
            assert!(!is_fixed(other), "{other:?}");
        }
    }

    #[test]
    fn dynamic_numbers_are_looked_up_in_sysfs() {
        let root = std::env::temp_dir().join(format!("bareverbs-class-{}", std::process::id()));
        for (number, class) in
            [("240:0", "infiniband_verbs"), ("240:1", "infiniband_mad"), ("10:203", "misc")]
        {
            let folder = root.join("dev/char").join(number);
            fs::create_dir_all(&folder).unwrap();
            symlink(format!("../../../class/{class}"), folder.join("subsystem")).unwrap();
        }
        assert_eq!(check_class((240, 0), Some(&root)), Ok(()));
        for other in [(240, 1), (10, 203), (240, 2)] {
            assert_eq!(check_class(other, Some(&root)), Err(OpenError::NotUverbs), "{other:?}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn dynamic_number_without_sysfs_is_rejected_with_remedy() {
        let refused = check_class((240, 7), None).unwrap_err();
        assert_eq!(refused, OpenError::Unidentified { major: 240, minor: 7 });
        let text = refused.to_string();
        assert!(text.contains("240:7") && text.contains("mount sysfs at /sys"), "{text}");
        assert!(!is_sysfs(&std::env::temp_dir()));
    }
}
