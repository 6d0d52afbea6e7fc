//! A simulated kernel, for tests.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bareverbs_provider::process::ForkGuard;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::QpAttr;
use zerocopy::FromBytes;

use super::{CmFile, Source};
use crate::Addr;

/// The kernel's side of a file of a test. It executes every command, and has events.
#[derive(Debug, Default)]
pub(crate) struct Simulated {
    events: Mutex<VecDeque<EventResp>>,
    destroyed: Mutex<Vec<u32>>,
    disconnected: Mutex<Vec<u32>>,
    resolved: Mutex<Vec<u32>>,
    at_resolution: Mutex<Option<Waker>>,
    peer: Mutex<Option<Addr>>,
    iwarp: AtomicBool,
    /// The numbers of the commands.
    commands: Mutex<Vec<u32>>,
}

impl Simulated {
    /// Queues an event.
    pub(crate) fn report(&self, event: EventResp) {
        self.events.lock().unwrap().push_back(event);
    }

    /// The numbers of the identifiers that were destroyed.
    pub(crate) fn destroyed(&self) -> Vec<u32> {
        self.destroyed.lock().unwrap().clone()
    }

    /// The numbers of the identifiers whose connections were ended.
    pub(crate) fn disconnected(&self) -> Vec<u32> {
        self.disconnected.lock().unwrap().clone()
    }

    /// The time limits in milliseconds of the addresses that were to be resolved.
    pub(crate) fn resolved(&self) -> Vec<u32> {
        self.resolved.lock().unwrap().clone()
    }

    /// Wakes the waker while a command resolves an address or a route.
    pub(crate) fn wake_at_resolution(&self, waker: Option<Waker>) {
        *self.at_resolution.lock().unwrap() = waker;
    }

    /// Sets the address of the peer of all identifiers.
    pub(crate) fn set_peer(&self, peer: Addr) {
        *self.peer.lock().unwrap() = Some(peer);
    }

    /// Makes the device of all identifiers one of iWARP.
    pub(crate) fn set_iwarp(&self) {
        self.iwarp.store(true, Ordering::Relaxed);
    }

    /// How often the command was issued.
    pub(crate) fn count<C: Command>(&self) -> usize {
        self.commands.lock().unwrap().iter().filter(|number| **number == C::INFO.number).count()
    }

    pub(super) fn next_event(&self) -> Option<EventResp> {
        self.events.lock().unwrap().pop_front()
    }

    fn execute<C: Command>(&self, call: &Call<'_, C>) {
        fn request<R: FromBytes>(call: &[u8]) -> R {
            R::read_from_prefix(&call[size_of::<Header>()..]).expect("a request of this command").0
        }
        let (call, number) = (call.as_bytes(), C::INFO.number);
        self.commands.lock().unwrap().push(number);
        if number == DestroyId::INFO.number {
            self.destroyed.lock().unwrap().push(request::<DestroyIdReq>(call).id);
        } else if number == Disconnect::INFO.number {
            self.disconnected.lock().unwrap().push(request::<DisconnectReq>(call).id);
        } else if number == ResolveAddr::INFO.number {
            self.resolved.lock().unwrap().push(request::<ResolveAddrReq>(call).timeout_ms);
        } else if number == Query::INFO.number {
            self.answer(request(call));
        } else if number == InitQpAttr::INFO.number {
            self.answer_attributes(request(call));
        }
        if number == ResolveAddr::INFO.number || number == ResolveRoute::INFO.number {
            // Without the lock: the waker may call the kernel.
            let waker = self.at_resolution.lock().unwrap().clone();
            waker.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Answers with the mask of the attributes.
    fn answer_attributes(&self, InitQpAttrReq { response, .. }: InitQpAttrReq) {
        let mut mask = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        mask.set(QpAttrMask::PKEY_INDEX, !self.iwarp.load(Ordering::Relaxed));
        let answer = QpAttr { qp_attr_mask: mask, ..QpAttr::zeroed() };
        let response = std::ptr::with_exposed_provenance_mut::<QpAttr>(response as usize);
        #[expect(unsafe_code, reason = "commands have the addresses of their responses")]
        // SAFETY: the call of `init_qp_attr` borrows a response of this type.
        unsafe {
            response.write(answer);
        }
    }

    fn answer(&self, QueryReq { response, option, .. }: QueryReq) {
        let Some(peer) = self.peer.lock().unwrap().filter(|_| option == QueryOption::ADDR) else { return };
        let (dst_addr, dst_size) = peer.to_kernel();
        let answer = QueryAddrResp { dst_addr, dst_size, ..QueryAddrResp::zeroed() };
        let response = std::ptr::with_exposed_provenance_mut::<QueryAddrResp>(response as usize);
        #[expect(unsafe_code, reason = "commands have the addresses of their responses")]
        // SAFETY: `query_addr` alone has this option, and its call borrows a response of this type.
        unsafe {
            response.write(answer);
        }
    }
}

impl CmFile {
    /// A file that refuses commands.
    pub(crate) fn for_test() -> Self {
        let file = File::open("/dev/null").expect("/dev/null");
        Self { source: Source::Kernel(file), process: ForkGuard::new().expect("a page"), simulated: None }
    }

    /// A file with a simulated kernel. Its descriptor is never readable.
    pub(crate) fn simulated() -> Self {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let file = rustix::event::eventfd(0, flags).expect("an eventfd").into();
        let (source, process) = (Source::Kernel(file), ForkGuard::new().expect("a page"));
        Self { source, process, simulated: Some(Simulated::default()) }
    }

    /// The simulated kernel.
    pub(crate) fn kernel(&self) -> &Simulated {
        self.simulated.as_ref().expect("a simulated file")
    }

    /// Lets the simulated kernel execute a command, if there is one.
    pub(super) fn simulate<C: Command>(&self, call: &Call<'_, C>) -> bool {
        self.simulated.iter().for_each(|simulated| simulated.execute(call));
        self.simulated.is_some()
    }
}
