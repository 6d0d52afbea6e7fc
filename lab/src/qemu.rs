//! QEMU's command line, and the choice of the accelerator.

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

/// The accelerator of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM if it works, else TCG.
    Auto,
    /// KVM: the processor executes the guest.
    Kvm,
    /// TCG: QEMU translates the guest's instructions.
    Tcg,
}

impl FromStr for Accelerator {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Self::Auto,
            "kvm" => Self::Kvm,
            "tcg" => Self::Tcg,
            _ => bail!("unknown accelerator `{text}`: use auto, kvm or tcg"),
        })
    }
}

impl Accelerator {
    /// Resolves `Auto`: KVM if it can create a virtual machine and has not failed since the machine
    /// was booted.
    pub(crate) fn settle(self, cache: &Cache) -> Self {
        match self {
            Self::Auto if kvm_works() && !kvm_failed(cache) => Self::Kvm,
            Self::Auto => Self::Tcg,
            chosen => chosen,
        }
    }
}

const KVM_NOTE: &str = "kvm-fails";

/// Records that KVM exists but can't run guests, as with some nested KVMs.
pub(crate) fn record_kvm_failure(cache: &Cache) {
    // If the write fails, the next run detects the failure again.
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
    // SAFETY: KVM_CREATE_VM reads no memory of this process; it returns a new descriptor or an
    // error.
    match unsafe { kvm_create_vm(kvm.as_raw_fd(), 0) } {
        Ok(vm) => {
            // SAFETY: the kernel just created this descriptor, and it has no other owner.
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
    /// The guest's end of the wire, and its port number.
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
            // The HCA process maps the guest's memory.
            add("object", "memory-backend-memfd,id=memory,size=2G,share=on".into());
            machine.push_str(",memory-backend=memory");
            let socket = serde_json::json!({ "type": "unix", "path": socket });
            // On a real bus, a read of memory by the HCA is ordered after all earlier stores to the
            // HCA. Here only stores that wait for a reply are ordered before later stores to
            // memory.
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
            // Loading the NIC's option ROM would only take time.
            add("device", format!("virtio-net-pci,netdev=wire,mac=52:54:00:10:01:{host:02x},romfile="));
        }
        Ok(())
    }
}

fn command_basics(add: &mut impl FnMut(&str, String)) {
    // Four levels of page tables, as on almost all machines. A fifth makes TCG's page walks longer.
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
        // Warnings and more severe messages, with their stack traces.
        "loglevel=5",
        "oops=panic",
        "panic=-1",
        "reboot=t",
        "mitigations=off",
        "nokaslr",
        "cryptomgr.notests=1",
        // On a busy machine the emulated timer may be late for the kernel's timer check, and the
        // boot would fail.
        "no_timer_check",
        // All processors share the host's counter. Without this option, several processors would
        // read the time from a slow device.
        "tsc=reliable",
        "random.trust_cpu=on",
        "audit=0",
        CMDLINE_MARK,
    ]
    .join(" ")
}

/// A memfd: a file in memory that is freed with its last user.
fn memory_file(content: &[u8]) -> Result<File> {
    use std::io::Write;
    let fd = memfd_create(c"initramfs", MFdFlags::MFD_CLOEXEC)
        .context("creating a memory file for the initramfs")?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    Ok(file)
}
