//! The guest's file systems.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use bareverbs_lab_init::{PROGRAM_DIR, RDMA_CORE_TAG, Share};
use nix::mount::{MsFlags, mount};
use nix::unistd::{chdir, chroot, sethostname};

/// The 9p mount options. Caching is safe because the host does not change its shared folders.
const NINE_P: &str = "trans=virtio,version=9p2000.L,msize=524288,cache=loose";

/// Mounts the kernel's own file systems below `root` (an empty string for `/`).
pub(crate) fn system(root: &str) -> Result<()> {
    let all = [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("devtmpfs", "/dev", "mode=0755"),
        ("devpts", "/dev/pts", "mode=0620,ptmxmode=0666"),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("tmpfs", "/run", "mode=0755"),
        ("tmpfs", "/tmp", "mode=1777"),
        ("debugfs", "/sys/kernel/debug", ""),
    ];
    for (kind, target, options) in all {
        attach(kind, kind, &format!("{root}{target}"), MsFlags::empty(), options)?;
    }
    for (name, target) in [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        let link = format!("{root}/dev/{name}");
        if !Path::new(&link).exists() {
            symlink(target, &link).with_context(|| format!("linking {link}"))?;
        }
    }
    Ok(())
}

/// Makes the initramfs the root of the commands.
pub(crate) fn own_root() -> Result<()> {
    for folder in ["/root", "/etc", "/bin"] {
        fs::create_dir_all(folder)?;
    }
    install_programs("/bin")
}

/// Makes the Debian root from the host, with a writable layer on top, the root of the commands.
pub(crate) fn debian_root() -> Result<()> {
    attach_share(RDMA_CORE_TAG, "/lab/lower")?;
    attach("tmpfs", "tmpfs", "/lab/layer", MsFlags::empty(), "mode=0755")?;
    fs::create_dir_all("/lab/layer/upper")?;
    fs::create_dir_all("/lab/layer/work")?;
    let layers = "lowerdir=/lab/lower,upperdir=/lab/layer/upper,workdir=/lab/layer/work";
    attach("overlay", "overlay", "/lab/root", MsFlags::empty(), layers)?;
    system("/lab/root")?;
    install_programs("/lab/root/usr/local/bin")?;

    complete_debian("/lab/root")?;

    chdir("/lab/root")?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .context("moving the Debian root to /")?;
    chroot(".").context("entering the Debian root")?;
    chdir("/")?;
    Ok(())
}

/// Does the parts of the packages' install scripts that are needed; the scripts never ran.
fn complete_debian(root: &str) -> Result<()> {
    for (link, target) in [("sh", "dash"), ("awk", "mawk"), ("which", "which.debianutils")] {
        let link = format!("{root}/usr/bin/{link}");
        if fs::symlink_metadata(&link).is_err() {
            symlink(target, &link).with_context(|| format!("linking {link}"))?;
        }
    }
    for (file, content) in [
        ("passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"),
        ("group", "root:x:0:\nnogroup:x:65534:\n"),
    ] {
        let path = format!("{root}/etc/{file}");
        if !Path::new(&path).exists() {
            fs::write(&path, content).with_context(|| format!("writing {path}"))?;
        }
    }
    Ok(())
}

/// Mounts the host's shared folders.
pub(crate) fn shares(shares: &[Share]) -> Result<()> {
    shares.iter().try_for_each(|share| attach_share(&share.tag, &share.target))
}

/// Sets the guest's host name and the names of its peers.
pub(crate) fn identity(host: u8) -> Result<()> {
    sethostname(format!("host{host}")).context("setting the host name")?;
    let mut hosts = String::from("127.0.0.1 localhost\n");
    for number in 1..=16 {
        hosts.push_str(&format!("10.1.0.{number} host{number}\n"));
    }
    fs::write("/etc/hosts", hosts).context("writing /etc/hosts")
}

/// Copies the programs, because the initramfs can't be reached below another root.
fn install_programs(folder: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(PROGRAM_DIR).context(PROGRAM_DIR)? {
        let entry = entry?;
        let target = Path::new(folder).join(entry.file_name());
        fs::copy(entry.path(), &target).with_context(|| format!("installing {}", target.display()))?;
    }
    Ok(())
}

fn attach_share(tag: &str, target: &str) -> Result<()> {
    attach(tag, "9p", target, MsFlags::MS_RDONLY, NINE_P)
}

fn attach(source: &str, kind: &str, target: &str, flags: MsFlags, options: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("creating {target}"))?;
    mount(Some(source), target, Some(kind), flags, Some(options))
        .with_context(|| format!("mounting {kind} {source} on {target}"))
}
