//! QEMU's command line, and which accelerator it can use here.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::{CMDLINE_MARK, PORT_NAME};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::cache::Cache;
use crate::process::bind_to_parent;
use crate::tools::Tools;
use crate::wire::inheritable;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM where it works, TCG elsewhere.
    Auto,
    /// The processor itself.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl FromStr for Accelerator {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Self::Auto,
            "kvm" => Self::Kvm,
            "tcg" => Self::Tcg,
            _ => bail!("no accelerator `{text}`: there are auto, kvm and tcg"),
        })
    }
}

impl Accelerator {
    /// Decides `Auto`: KVM if it can make a virtual machine and hasn't failed since the machine was
    /// started.
    pub(crate) fn settle(self, cache: &Cache) -> Self {
        match self {
            Self::Auto if kvm_works() && !kvm_failed(cache) => Self::Kvm,
            Self::Auto => Self::Tcg,
            chosen => chosen,
        }
    }
}

const KVM_NOTE: &str = "kvm-fails";

/// Notes that KVM, though it is there, can't run guests (some nested ones can't).
pub(crate) fn remember_that_kvm_fails(cache: &Cache) {
    // If it can't be noted, the next run finds out by itself.
    let _ = fs::write(cache.root().join(KVM_NOTE), this_boot());
}

fn kvm_failed(cache: &Cache) -> bool {
    fs::read_to_string(cache.root().join(KVM_NOTE)).is_ok_and(|noted| noted == this_boot())
}

fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

// _IO(0xAE, 0x01), include/uapi/linux/kvm.h
nix::ioctl_write_int_bad!(kvm_create_vm, 0xae01);

fn kvm_works() -> bool {
    let Ok(kvm) = OpenOptions::new().read(true).write(true).open("/dev/kvm") else {
        return false;
    };
    // SAFETY: KVM_CREATE_VM reads no memory of ours; it answers a new descriptor or an error.
    match unsafe { kvm_create_vm(kvm.as_raw_fd(), 0) } {
        Ok(vm) => {
            // SAFETY: the kernel just made this descriptor and nobody else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(vm) });
            true
        }
        Err(_) => false,
    }
}

/// A host folder that the guest can mount.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) tag: String,
    pub(crate) path: PathBuf,
}

/// One virtual machine.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a [u8],
    pub(crate) accelerator: Accelerator,
    pub(crate) instruction_clock: bool,
    pub(crate) processors: usize,
    pub(crate) folders: &'a [Folder],
    /// The guest's end of the wire, and its number on it.
    pub(crate) wire: Option<(OwnedFd, u8)>,
    /// The guest's end of the lab's port.
    pub(crate) port: OwnedFd,
    /// The socket of an HCA.
    pub(crate) hca: Option<&'a Path>,
}

impl Machine<'_> {
    /// Starts QEMU, with the kernel's console on its standard output.
    pub(crate) fn start(self, tools: &Tools) -> Result<Child> {
        let initramfs = memory_file(self.initramfs)?;
        let mut command = tools.qemu();
        self.describe(&mut command, &initramfs)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        bind_to_parent(&mut command).spawn().context("starting QEMU")
    }

    fn describe(&self, command: &mut Command, initramfs: &File) -> Result<()> {
        let mut add = |option: &str, value: String| {
            command.arg(format!("-{option}")).arg(value);
        };
        command_basics(&mut add);
        let mut machine = "q35,usb=off,vmport=off".to_owned();
        if let Some(socket) = self.hca {
            // The HCA reads and writes the guest's memory.
            add("object", "memory-backend-memfd,id=memory,size=2G,share=on".into());
            machine.push_str(",memory-backend=memory");
            let socket = serde_json::json!({ "type": "unix", "path": socket });
            // On a bus, an HCA that reads memory sees everything that was stored to the HCA before.
            // Here only stores that wait for their answer come before what is in memory afterwards.
            let device = serde_json::json!({
                "driver": "vfio-user-pci", "socket": socket, "x-no-posted-writes": true,
            });
            add("device", device.to_string());
        }
        add("machine", machine);
        match (self.accelerator, self.instruction_clock) {
            (_, true) => {
                add("accel", "tcg,thread=single".into());
                add("icount", "shift=0,sleep=off".into());
                add("smp", "1".into());
            }
            (Accelerator::Kvm, false) => {
                add("accel", "kvm".into());
                add("smp", self.processors.to_string());
            }
            (Accelerator::Auto | Accelerator::Tcg, false) => {
                add("accel", "tcg,thread=multi".into());
                add("smp", self.processors.to_string());
            }
        }
        add("kernel", self.kernel.display().to_string());
        inheritable(initramfs)?;
        add("initrd", format!("/proc/self/fd/{}", initramfs.as_raw_fd()));
        add("append", kernel_command_line());
        inheritable(&self.port)?;
        add("device", "virtio-serial-pci".into());
        add("chardev", format!("socket,id=lab,fd={}", self.port.as_raw_fd()));
        add("device", format!("virtserialport,chardev=lab,name={PORT_NAME}"));
        for Folder { tag, path } in self.folders {
            let path = path.display().to_string().replace(',', ",,");
            let options = "security_model=none,readonly=on,multidevs=remap";
            add("virtfs", format!("local,path={path},mount_tag={tag},{options}"));
        }
        if let Some((wire, host)) = &self.wire {
            inheritable(wire)?;
            add("netdev", format!("dgram,id=wire,local.type=fd,local.str={}", wire.as_raw_fd()));
            // The option ROM of the HCA would only cost time.
            add("device", format!("virtio-net-pci,netdev=wire,mac=52:54:00:10:01:{host:02x},romfile="));
        }
        Ok(())
    }
}

fn command_basics(add: &mut impl FnMut(&str, String)) {
    // Four levels of page tables, as almost all machines have; a fifth makes each walk of TCG
    // longer.
    add("cpu", "max,la57=off".into());
    add("m", "2G".into());
    add("display", "none".into());
    add("vga", "none".into());
    add("nic", "none".into());
    add("monitor", "none".into());
    add("parallel", "none".into());
    add("chardev", "stdio,id=console,signal=off".into());
    add("serial", "chardev:console".into());
    add("action", "reboot=shutdown".into());
}

fn kernel_command_line() -> String {
    [
        "console=ttyS0",
        // Warnings and worse, with the stack traces that follow them.
        "loglevel=5",
        "oops=panic",
        "panic=-1",
        "reboot=t",
        "mitigations=off",
        "nokaslr",
        "cryptomgr.notests=1",
        // On a busy machine the emulated timer may be late for the kernel's check of it, which then
        // gives up.
        "no_timer_check",
        // All its processors have the host's counter. Without this, several of them would ask a
        // slow device for the time.
        "tsc=reliable",
        "random.trust_cpu=on",
        "audit=0",
        CMDLINE_MARK,
    ]
    .join(" ")
}

/// A file that exists only in memory and goes away with its last user.
fn memory_file(content: &[u8]) -> Result<File> {
    use std::io::Write;
    let fd = memfd_create(c"initramfs", MFdFlags::MFD_CLOEXEC)
        .context("making a memory file for the initramfs")?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    Ok(file)
}
