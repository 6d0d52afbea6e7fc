//! Execution of programs on a device, and the model of its objects.
//!
//! The model has the objects of each open file. It is exact where the ABI is: a call without an
//! object that it needs fails, a used object is not destroyed, a created object has a free handle, a
//! failed call changes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bareverbs_trace::ResourceChange;
use bareverbs_uapi::abi::Since;
use bareverbs_uapi::ioctl::VERBS_IOCTL;
use bareverbs_uapi::method::Method;
use bareverbs_uapi::method::{Access, AttributeKind};
use bareverbs_uapi::print::native;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::{InfoHandles, InvokeWrite, ObjectClass, QueryGidEntry};

use crate::answer::Answer;
use crate::call::{Call, Payload, Slot};
use crate::target::{Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

use super::exclusions::Exclusion;
use super::facts::{ANY_CLASS, Facts, Name};
use super::faults::{self, Objects};
use super::memory::Memory;
use super::places::{Place, Places, created};
use super::program::{Action, CallAction, Choices, Fault};
use super::recorder::Recorder;
use super::values::Environment;
use super::written::Written;
use super::{Broken, Rule};

pub(super) type Step<T> = Result<T, Broken>;

/// Timeout of the release of objects after a program. Drivers release some of them in a worker.
const SETTLE: Duration = Duration::from_secs(5);

/// The most files that a program opens.
const MAX_FILES: usize = 4;

/// A live object.
struct Object {
    class: u16,
    handle: u64,
    /// The objects that it uses.
    uses: Vec<Name>,
    /// Handles of objects that it may use.
    mentions: Vec<u64>,
    /// Whether something outside of the model may use it, such as a multicast group.
    pinned: bool,
}

struct OpenFile<'t> {
    file: Box<dyn UverbsFile + 't>,
    /// Its number in the recording.
    number: i32,
    has_context: bool,
    objects: Vec<Object>,
    gone: Vec<Name>,
    descriptors: Vec<(u16, i32)>,
    /// Descriptors of the file itself and of an unrelated file.
    other: [i32; 2],
}

impl OpenFile<'_> {
    fn find(&self, (class, handle): Name) -> Option<usize> {
        let is = |object: &Object| (class == ANY_CLASS || object.class == class) && object.handle == handle;
        self.objects.iter().position(is)
    }

    fn is_used(&self, name: Name) -> bool {
        self.objects.iter().any(|object| object.uses.contains(&name))
    }
}

/// Counts of calls and their successes by place.
pub(super) type Counts = BTreeMap<String, (u64, u64)>;

/// Executes programs.
pub(super) struct Machine<'t> {
    // Declared before the memory, and dropped before it.
    files: Vec<OpenFile<'t>>,
    pub(super) target: &'t dyn Target,
    pub(super) series: Since,
    pub(super) places: &'t Places,
    pub(super) environment: Environment,
    pub(super) counts: Counts,
    pub(super) excluded: BTreeMap<&'static str, u64>,
    pub(super) slowest: Duration,
    limit: Duration,
    pub(super) recorder: Recorder,
    /// The memory of `environment`. The kernel writes it.
    memory: Memory,
    opened: i32,
}

/// A call as it is sent.
enum Sent {
    Ioctl(Call),
    Write(Written),
}

/// The first number of a file in recordings.
const FIRST_FILE: i32 = 100;

impl<'t> Machine<'t> {
    pub(super) fn new(
        target: &'t dyn Target,
        series: Since,
        places: &'t Places,
        limit: Duration,
        recorder: Recorder,
    ) -> Result<Self, String> {
        let memory = Memory::new().map_err(|errno| format!("no memory: {errno}"))?;
        let environment = Environment { memory: memory.start(), gid: [0; 16] };
        Ok(Self {
            files: Vec::new(),
            target,
            series,
            places,
            environment,
            counts: Counts::new(),
            excluded: BTreeMap::new(),
            slowest: Duration::ZERO,
            limit,
            recorder,
            memory,
            opened: 0,
        })
    }

    /// Reads the first GID of the port, for paths to the port itself, and makes each kind of object
    /// once: drivers make some of their own at the first use.
    pub(super) fn warm_up(&mut self) -> Step<()> {
        self.open()?;
        let mut call = Call::of(self.target.driver_id(), &QueryGidEntry::INFO)
            .with(Slot::number(QueryGidEntry::PORT.id(), 1))
            .with(Slot::number(QueryGidEntry::GID_INDEX.id(), 0))
            .with(Slot::number(QueryGidEntry::FLAGS.id(), 0))
            .with(Slot::output(QueryGidEntry::RESP_ENTRY.id(), 32));
        self.need_context(0)?;
        if self.execute(0, &mut call) == Answer::Ok
            && let Some(gid) =
                call.slot(QueryGidEntry::RESP_ENTRY.id()).and_then(|slot| slot.bytes().first_chunk())
        {
            self.environment.gid = *gid;
        }
        for class in (0..=ObjectClass::DMABUF.0).chain(0x1000..0x1010) {
            self.make(0, class, 1)?;
        }
        self.close_all();
        Ok(())
    }

    /// Forgets the calls up to now, which are none of a program.
    pub(super) fn forget_calls(&mut self) {
        self.counts.clear();
        self.excluded.clear();
        self.slowest = Duration::ZERO;
    }

    /// Runs a program. The device must be unused.
    pub(super) fn run(&mut self, program: &[Action]) -> Step<()> {
        self.recorder.begin();
        let before = self.target.resources();
        let result = self.actions(program).and_then(|()| self.check_all(&before));
        self.close_all();
        let result = result.and_then(|()| self.settle(&before));
        match self.target.warnings() {
            log if log.is_empty() => result,
            log => {
                Err(Broken { rule: Rule::KernelLog, reason: format!("the kernel reports: {}", log[0]), log })
            }
        }
    }

    fn actions(&mut self, program: &[Action]) -> Step<()> {
        self.open()?;
        for action in program {
            match action {
                Action::Open => self.open()?,
                Action::Close(file) => {
                    // One file stays open.
                    if self.files.len() > 1 {
                        let index = usize::from(*file) % self.files.len();
                        self.close(index);
                    }
                }
                Action::CloseDescriptor(which) => self.close_descriptor(*which),
                Action::Call(call) => self.call(call)?,
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Step<()> {
        if self.files.len() >= MAX_FILES {
            return Ok(());
        }
        let file = self.target.open().map_err(|errno| {
            Broken::new(Rule::Open, format!("the device can't be opened: {}", Answer::errno(errno)))
        })?;
        let other = file.other_fds();
        self.files.push(OpenFile {
            file,
            number: FIRST_FILE + self.opened,
            has_context: false,
            objects: Vec::new(),
            gone: Vec::new(),
            descriptors: Vec::new(),
            other,
        });
        self.opened += 1;
        Ok(())
    }

    fn close(&mut self, index: usize) {
        let file = self.files.swap_remove(index);
        for (_, fd) in &file.descriptors {
            self.recorder.closed(*fd, self.target);
            file.file.close(*fd);
        }
        self.recorder.closed(file.number, self.target);
    }

    fn close_all(&mut self) {
        while !self.files.is_empty() {
            self.close(0);
        }
        self.opened = 0;
    }

    fn close_descriptor(&mut self, which: u8) {
        let all = self.files.iter().enumerate().flat_map(|(index, file)| {
            file.descriptors.iter().map(move |(_, fd)| (index, *fd)).collect::<Vec<_>>()
        });
        let all: Vec<_> = all.collect();
        if let Some((index, fd)) = faults::pick(&all, which) {
            self.recorder.closed(*fd, self.target);
            let file = &mut self.files[*index];
            file.file.close(*fd);
            file.descriptors.retain(|(_, open)| open != fd);
        }
    }

    pub(super) fn other_fds(&self, file: usize) -> [i32; 2] {
        self.files[file].other
    }

    /// The live objects of a class, the oldest first.
    pub(super) fn live(&self, file: usize, class: u16) -> Vec<u64> {
        let objects = self.files[file].objects.iter();
        objects
            .filter(|object| class == ANY_CLASS || object.class == class)
            .map(|object| object.handle)
            .collect()
    }

    /// The open descriptors of a class.
    pub(super) fn descriptors(&self, file: usize, class: u16) -> Vec<i32> {
        let descriptors = self.files[file].descriptors.iter();
        descriptors.filter(|(of, _)| *of == class).map(|(_, fd)| *fd).collect()
    }

    /// Makes an object of a class by the usual call, which may fail.
    pub(super) fn make(&mut self, file: usize, class: u16, depth: usize) -> Step<()> {
        let Some(place) = self.places.maker(class) else { return Ok(()) };
        self.place(file, place, &mut Choices::new(&[]), &[], depth)
    }

    fn need_context(&mut self, file: usize) -> Step<()> {
        if self.files[file].has_context {
            return Ok(());
        }
        let place = self.places.context();
        self.place(file, place, &mut Choices::new(&[]), &[], 0)
    }

    fn call(&mut self, action: &CallAction) -> Step<()> {
        let file = usize::from(action.file) % self.files.len();
        self.need_context(file)?;
        self.place(file, action.place, &mut Choices::new(&action.choices), &action.faults, 0)
    }

    /// Builds a call, changes and executes it, and compares the answer with the model.
    fn place(
        &mut self,
        file: usize,
        place: usize,
        choices: &mut Choices<'_>,
        faults: &[Fault],
        depth: usize,
    ) -> Step<()> {
        let place = self.places.all[place];
        let mut sent = match place {
            Place::Method(method) => Sent::Ioctl(self.method_call(file, method, choices, depth)?),
            Place::Command(command) => Sent::Ioctl(self.command_call(file, command, choices, depth)?),
            Place::Write(command) => Sent::Write(self.written(file, command, choices, depth)?),
        };
        let objects = self.objects(file);
        match &mut sent {
            Sent::Ioctl(call) => {
                faults::apply_all(call, faults, self.places.driver, &objects, &self.environment);
            }
            Sent::Write(written) => {
                for fault in faults {
                    apply_to_written(written, fault, &objects, &self.environment);
                }
            }
        }
        let facts = match &sent {
            Sent::Ioctl(call) => Facts::of_call(call, self.places.driver),
            Sent::Write(written) => Facts::of_command(written.command, written.sent_request()),
        };
        if let Some(Exclusion { reason, .. }) = super::exclusions::find(&facts, self.target, self.series) {
            *self.excluded.entry(reason).or_default() += 1;
            return Ok(());
        }
        let before = Instant::now();
        let (answer, response) = self.send(file, &mut sent);
        let duration = before.elapsed();
        self.slowest = self.slowest.max(duration);
        let count = self.counts.entry(place.name()).or_default();
        count.0 += 1;
        count.1 += u64::from(answer == Answer::Ok);
        if duration > self.limit {
            let reason = format!("{} took {:.1} s", place.name(), duration.as_secs_f64());
            return Err(Broken::new(Rule::TimeLimit, reason));
        }
        match answer {
            Answer::Ok => self.succeeded(file, place, &sent, &facts, &response),
            error => self.failed(file, place, &facts, error, faults.is_empty()),
        }
    }

    fn objects(&self, file: usize) -> Objects {
        let names = |file: &OpenFile<'_>| -> Vec<Name> {
            file.objects.iter().map(|object| (object.class, object.handle)).collect()
        };
        let live = names(&self.files[file]);
        // A handle that is in use again is not stale.
        let is_free = |(_, handle): &&Name| !live.iter().any(|(_, used)| used == handle);
        let gone = self.files[file].gone.iter().filter(is_free).copied().collect();
        let others = self.files.iter().enumerate().filter(|(index, _)| *index != file);
        let foreign = others.flat_map(|(_, file)| names(file)).filter(|name| is_free(&name)).collect();
        Objects { live, gone, foreign }
    }

    /// Sends a call. The answer, and the response of a command.
    fn send(&mut self, file: usize, sent: &mut Sent) -> (Answer, Vec<u8>) {
        match sent {
            Sent::Ioctl(call) => {
                let answer = self.execute(file, call);
                let response = call.slot(InvokeWrite::CORE_OUT.id()).and_then(|slot| match slot.payload {
                    Payload::Output(_) => Some(slot.bytes().to_vec()),
                    // The call was built for another method. This number is an address for the kernel.
                    _ => self.memory.read(slot.raw.data, slot.raw.len.into()),
                });
                (answer, response.unwrap_or_default())
            }
            Sent::Write(written) => {
                let mut response = Vec::new();
                let buffer = WriteBuffer::new(&written.encode(&mut response));
                let OpenFile { file, number, .. } = &self.files[file];
                let pending = self.recorder.write(*number, self.target, &buffer);
                // SAFETY: the only address that the kernel writes to is that of the response, which has
                // as many bytes as the header states, or no memory. Other fields with addresses have
                // those of `memory`, which is dropped after the files, or values that are no address of
                // this process (`values::extreme`).
                let result = unsafe { file.write(&buffer) };
                self.recorder.written(pending, &result, &response);
                (Answer::of(&result), response)
            }
        }
    }

    fn execute(&mut self, file: usize, call: &mut Call) -> Answer {
        let mut bytes = call.encode();
        let OpenFile { file, number, .. } = &self.files[file];
        let pending = self.recorder.ioctl(*number, self.target, call, &bytes);
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: payloads are buffers of the call, as long as the attributes say, or have no memory.
        // Inputs with addresses have those of `memory`, which is dropped after the files and which
        // nothing else refers to, or values that are no address of this process (`values::extreme`).
        // If the header names another method than the call was built for, numbers in attributes are
        // no address of this process either (`faults::confine`).
        let result = unsafe { file.ioctl(VERBS_IOCTL, address) };
        call.read_back(&bytes);
        self.recorder.answered(pending, &result, call, &bytes);
        Answer::of(&result)
    }

    fn succeeded(
        &mut self,
        index: usize,
        place: Place,
        sent: &Sent,
        facts: &Facts,
        response: &[u8],
    ) -> Step<()> {
        let file = &mut self.files[index];
        for (class, handle) in &facts.needs {
            if file.find((*class, *handle)).is_none() {
                let class = ObjectClass(*class);
                let reason = format!("{} succeeded with handle {handle:#x} of no {class}", place.name());
                return Err(Broken::new(Rule::Handle, reason));
            }
        }
        if facts.context {
            if file.has_context {
                let reason = format!("{} made a second context", place.name());
                return Err(Broken::new(Rule::Context, reason));
            }
            file.has_context = true;
        }
        if let Some(name) = facts.destroys {
            if file.is_used(name) {
                let reason = format!("{} destroyed a used {}", place.name(), ObjectClass(name.0));
                return Err(Broken::new(Rule::Busy, reason));
            }
            file.objects.retain(|object| (object.class, object.handle) != name);
            file.gone.push(name);
        }
        match facts.command.map_or("", |command| command.rust) {
            "AttachMcast" => {
                let qp = facts.field("qp_handle");
                let qps = file.objects.iter_mut().filter(|object| object.handle == qp);
                qps.for_each(|object| object.pinned = true);
            }
            "ReregMr" => {
                let (mr, pd) = (facts.field("mr_handle"), facts.field("pd_handle"));
                let moved = file
                    .objects
                    .iter_mut()
                    .filter(|object| object.handle == mr && facts.field("flags") & 2 != 0);
                moved.for_each(|object| {
                    object.uses = vec![(ObjectClass::PD.0, pd)];
                    object.mentions.push(pd);
                });
            }
            "GetContext" => {
                let fd = response.get(..4).map(native);
                file.descriptors.extend(fd.map(|fd| (ObjectClass::ASYNC_EVENT.0, fd as u32 as i32)));
            }
            _ => {}
        }
        match facts.creates {
            Some(class) => self.created(index, place, sent, facts, response, class),
            None => Ok(()),
        }
    }

    fn created(
        &mut self,
        index: usize,
        place: Place,
        sent: &Sent,
        facts: &Facts,
        response: &[u8],
        class: u16,
    ) -> Step<()> {
        let new = match (sent, facts.command) {
            (_, Some(_)) if facts.descriptor => response.get(..4).map(native),
            (_, Some(command)) => created(command).and_then(|(_, at)| response.get(at..at + 4)).map(native),
            (Sent::Ioctl(call), None) => new_handle(call, self.places),
            (Sent::Write(_), None) => None,
        };
        if facts.descriptor {
            let fd = new.map_or(-1, |fd| fd as u32 as i32);
            if fd < 0 {
                return Err(Broken::new(Rule::Handle, format!("{} made descriptor {fd}", place.name())));
            }
            self.files[index].descriptors.push((class, fd));
            return Ok(());
        }
        // The response of an extended command may end before the handle.
        let listed = self.handles(index, class)?;
        let known = self.live(index, class);
        let mut unknown = listed.iter().filter(|handle| !known.contains(handle));
        let (first, second) = (unknown.next().copied(), unknown.next());
        let complete = new.filter(|_| response_is_complete(sent, facts));
        match (first, second) {
            (Some(handle), None) if complete.is_none_or(|new| new == handle) => {
                let file = &mut self.files[index];
                let uses = facts.uses.iter().filter(|name| file.find(**name).is_some()).copied().collect();
                let mentions = facts.mentions.clone();
                file.objects.push(Object { class, handle, uses, mentions, pinned: false });
                Ok(())
            }
            _ => {
                let class = ObjectClass(class);
                let reason = format!(
                    "{} returned handle {new:x?} of a new {class}; the kernel has {listed:x?}, known were {known:x?}",
                    place.name()
                );
                Err(Broken::new(Rule::Handle, reason))
            }
        }
    }

    fn failed(&mut self, index: usize, place: Place, facts: &Facts, error: Answer, valid: bool) -> Step<()> {
        let Some(name) = facts.destroys else { return Ok(()) };
        let file = &self.files[index];
        let Some(object) = file.find(name).map(|at| &file.objects[at]) else { return Ok(()) };
        let is_mentioned = file.objects.iter().any(|object| object.mentions.contains(&name.1));
        let free = !is_mentioned && !object.pinned;
        if valid && free && name.0 <= ObjectClass::MW.0 {
            let class = ObjectClass(name.0);
            let reason = format!("{} failed with {error} for an unused {class}", place.name());
            return Err(Broken::new(Rule::Destroy, reason));
        }
        // The response of a destruction is written afterwards.
        if error == Answer::FAULT && !self.handles(index, name.0)?.contains(&name.1) {
            if self.files[index].is_used(name) {
                let reason = format!("{} destroyed a used {}", place.name(), ObjectClass(name.0));
                return Err(Broken::new(Rule::Busy, reason));
            }
            let file = &mut self.files[index];
            file.objects.retain(|object| (object.class, object.handle) != name);
            file.gone.push(name);
        }
        Ok(())
    }

    /// The handles of a class, as the kernel lists them. An absent class has none.
    fn handles(&self, file: usize, class: u16) -> Step<Vec<u64>> {
        const MOST: usize = 256;
        let mut call = Call::of(self.target.driver_id(), &InfoHandles::INFO)
            .with(Slot::number(InfoHandles::OBJECT_ID.id(), class.into()))
            .with(Slot::output(InfoHandles::TOTAL_HANDLES.id(), 4))
            .with(Slot::output(InfoHandles::HANDLES_LIST.id(), 4 * MOST));
        let mut bytes = call.encode();
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: all addresses are those of buffers of the call, as long as it says.
        let result = unsafe { self.files[file].file.ioctl(VERBS_IOCTL, address) };
        call.read_back(&bytes);
        match Answer::of(&result) {
            Answer::Ok => {}
            Answer::NOENT => return Ok(Vec::new()),
            error => return Err(Broken::new(Rule::Handle, format!("INFO_HANDLES failed with {error}"))),
        }
        let total = call.u32_of(InfoHandles::TOTAL_HANDLES.id()) as usize;
        let list = call.slot(InfoHandles::HANDLES_LIST.id()).map(Slot::bytes).unwrap_or_default();
        Ok(list.chunks_exact(4).take(total.min(MOST)).map(native).collect())
    }

    /// Compares all handles and counts with the model.
    fn check_all(&self, before: &Result<bareverbs_netlink::ResourceSummary, String>) -> Step<()> {
        for (index, file) in self.files.iter().enumerate() {
            if !file.has_context {
                continue;
            }
            for object in self.places.driver.objects().filter(|object| object.id != ObjectClass::DEVICE.0) {
                let mut listed = self.handles(index, object.id)?;
                let mut known = self.live(index, object.id);
                // The kernel lists 0 for each object with a descriptor.
                known.extend(self.descriptors(index, object.id).iter().map(|_| 0));
                listed.sort_unstable();
                known.sort_unstable();
                if listed != known {
                    let reason = format!(
                        "the file has handles {listed:x?} of class {}, expected {known:x?}",
                        object.rust
                    );
                    return Err(Broken::new(Rule::Handle, reason));
                }
            }
        }
        self.check_counts(before)
    }

    /// Compares the device's counts with the model. Drivers other than rxe have objects of their own.
    fn check_counts(&self, before: &Result<bareverbs_netlink::ResourceSummary, String>) -> Step<()> {
        if self.target.driver_id() != DriverId::RXE.0 {
            return Ok(());
        }
        let failed = |reason: String| Broken::new(Rule::Counts, reason);
        let mut expected = before.clone().map_err(failed)?;
        let now = self.target.resources().map_err(failed)?;
        for file in &self.files {
            expected.ctx += u64::from(file.has_context);
            for object in &file.objects {
                match ObjectClass(object.class) {
                    ObjectClass::PD => expected.pd += 1,
                    ObjectClass::CQ => expected.cq += 1,
                    ObjectClass::QP => expected.qp += 1,
                    ObjectClass::SRQ => expected.srq += 1,
                    ObjectClass::MR => expected.mr += 1,
                    _ => {}
                }
            }
        }
        match now == expected {
            true => Ok(()),
            false => Err(failed(format!(
                "the device's objects (model, kernel): {}",
                ResourceChange(expected, now)
            ))),
        }
    }

    /// Waits until the device has as many objects as before the program.
    fn settle(&self, before: &Result<bareverbs_netlink::ResourceSummary, String>) -> Step<()> {
        let failed = |reason: String| Broken::new(Rule::Leak, reason);
        let before = before.clone().map_err(failed)?;
        let begin = Instant::now();
        loop {
            let now = self.target.resources().map_err(failed)?;
            if now == before {
                return Ok(());
            }
            if begin.elapsed() > SETTLE {
                return Err(failed(format!(
                    "after closing, the device's objects: {}",
                    ResourceChange(before, now)
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether the response of a command has the handle.
fn response_is_complete(sent: &Sent, facts: &Facts) -> bool {
    let Some((_, at)) = facts.command.and_then(created) else { return true };
    match sent {
        Sent::Ioctl(call) => {
            call.slot(InvokeWrite::CORE_OUT.id()).is_some_and(|slot| usize::from(slot.raw.len) >= at + 4)
        }
        Sent::Write(written) => written.words.is_none_or(|(_, out)| usize::from(out) * 4 >= at + 4),
    }
}

/// The handle or descriptor that an ioctl returned.
fn new_handle(call: &Call, places: &Places) -> Option<u64> {
    let method = places.driver.method(call.header.object_id, call.header.method_id)?;
    let new = places.driver.attributes(method).find(|info| {
        matches!(
            info.kind,
            AttributeKind::Handle { access: Access::New, .. }
                | AttributeKind::Descriptor { access: Access::New, .. }
        )
    })?;
    Some(call.slot(new.id)?.raw.data)
}

/// Changes a command that is written. It has no attributes: only some faults apply.
fn apply_to_written(written: &mut Written, fault: &Fault, objects: &Objects, environment: &Environment) {
    let info = written.command.request;
    let mut name = |object: Option<&Name>| {
        if let (Some((_, handle)), Some(info)) = (object, info) {
            faults::name_in(info, &mut written.request, *handle);
        }
    };
    match *fault {
        Fault::Stale(_, which) => name(faults::pick(&objects.gone, which)),
        Fault::OtherClass(_, which) => name(faults::pick(&objects.live, which)),
        Fault::Foreign(_, which) => name(faults::pick(&objects.foreign, which)),
        Fault::Value(_, field, choice) => {
            if let Some(info) = info {
                faults::set_field(info, &mut written.request, field, choice, environment);
            }
        }
        Fault::Length(_, len) => written.request.resize(usize::from(len).min(1024), 0),
        Fault::Unmap(_) => written.unmapped = true,
        Fault::Words(request, response) => written.words = Some((request, response)),
        Fault::Drop(_) => written.driver_request.clear(),
        _ => {}
    }
}
