//! This host's devices, and the heaps registered with them.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys as sys;
use rustix::io::Errno;
use tollgate_shm_abi::heap::Region;

use super::domain::{Contexts, Domain, check, failed, last_errno};
use super::memory::Memory;
use crate::error::RdmaError;
use crate::limits;
use crate::registrations::Registrations;

/// This host's RDMA devices.
#[derive(Clone)]
pub struct Rdma {
    devices: Arc<[Arc<Device>]>,
}

/// A device's name and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that `ibv_devices` lists.
    pub name: String,
    /// Most scatter-gather elements of one work request of a link.
    pub max_elements: usize,
    /// Number of heaps registered with it.
    pub heaps: usize,
    /// Number of registrations so far, of heaps and of links' buffers.
    pub registrations: u64,
    /// Bytes registered with it now, and therefore pinned: heaps, links' buffers and rings,
    /// pollers' pools.
    pub pinned_bytes: u64,
    /// Of these, bytes in 2 MiB pages.
    pub huge_bytes: u64,
}

/// One device, and the heaps registered with it.
pub(crate) struct Device {
    pub(super) domain: Arc<Domain>,
    max_elements: usize,
    max_completions: u32,
    registered: Mutex<Registrations<Region, Memory, RdmaError>>,
}

impl Rdma {
    /// Opens every device.
    ///
    /// # Errors
    /// If there is no library, no device, or no usable one.
    pub fn open() -> Result<Rdma, RdmaError> {
        let mut count = 0;
        // SAFETY: the function writes the number of entries to `count`.
        let list = unsafe { sys::rdma_get_devices(&mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(match last_errno() {
                Errno::OPNOTSUPP => RdmaError::NoLibrary,
                Errno::NODEV | Errno::NOENT => RdmaError::NoDevice,
                errno => RdmaError::Call {
                    doing: "listing the RDMA devices",
                    errno,
                },
            });
        };
        let contexts = Arc::new(Contexts(list));
        let mut devices = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let context = unsafe { *list.as_ptr().add(index) };
            if let Some(context) = NonNull::new(context) {
                devices.push(Arc::new(Device::open(context, &contexts)?));
            }
        }
        match devices.is_empty() {
            true => Err(RdmaError::NoDevice),
            false => Ok(Rdma {
                devices: devices.into(),
            }),
        }
    }

    /// All opened devices.
    pub fn devices(&self) -> impl Iterator<Item = DeviceInfo> {
        self.devices.iter().map(|device| device.info())
    }

    /// Unregisters heaps that nothing else refers to, because their sessions have ended. Returns
    /// their number.
    pub fn sweep(&self) -> usize {
        let swept = self.devices.iter().map(|device| device.heaps().sweep());
        swept.sum()
    }

    /// The device of an rdma_cm id.
    pub(super) fn of(&self, context: *mut sys::ibv_context) -> Option<&Arc<Device>> {
        let mut devices = self.devices.iter();
        devices.find(|device| device.domain.context.as_ptr() == context)
    }
}

impl Device {
    fn open(
        context: NonNull<sys::ibv_context>,
        contexts: &Arc<Contexts>,
    ) -> Result<Device, RdmaError> {
        // SAFETY: the context is open while `contexts` is held, and has a device, whose name is a C
        // string that lives as long.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name((*context.as_ptr()).device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: a C struct of numbers and arrays of them.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the function fills `attributes`.
        let status = unsafe { sys::ibv_query_device(context.as_ptr(), &mut attributes) };
        check("asking a device what it can do", status)?;
        // SAFETY: the context is open.
        let protection = NonNull::new(unsafe { sys::ibv_alloc_pd(context.as_ptr()) });
        let protection = protection.ok_or_else(|| failed("allocating a protection domain"))?;
        let max_elements = usize::try_from(attributes.max_sge)
            .unwrap_or(1)
            .clamp(1, limits::MAX_ELEMENTS);
        let domain = Arc::new(Domain {
            context,
            protection,
            name,
            registrations: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            huge_bytes: AtomicU64::new(0),
            _contexts: Arc::clone(contexts),
        });
        Ok(Device {
            domain,
            max_elements,
            max_completions: attributes.max_cqe.unsigned_abs(),
            registered: Mutex::new(Registrations::new(limits::REGISTERED_HEAPS)),
        })
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.domain.name.clone(),
            max_elements: self.max_elements,
            heaps: self.heaps().len(),
            registrations: self.domain.registrations.load(Ordering::Relaxed),
            pinned_bytes: self.domain.pinned_bytes.load(Ordering::Relaxed),
            huge_bytes: self.domain.huge_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn max_elements(&self) -> usize {
        self.max_elements
    }

    /// Checks that one of its completion queues can have this many entries.
    pub(super) fn can_complete(&self, entries: usize) -> Result<(), RdmaError> {
        let needed = u32::try_from(entries).unwrap_or(u32::MAX);
        match self.max_completions {
            found if found < needed => Err(RdmaError::Device {
                device: self.domain.name.clone(),
                what: "completions in a queue",
                found,
                needed,
            }),
            _ => Ok(()),
        }
    }

    /// Registers a whole heap if needed; returns its memory and whether it was registered now.
    pub(crate) fn heap(
        &self,
        address: NonNull<u8>,
        region: impl FnOnce() -> Region,
    ) -> (Result<Arc<Memory>, Arc<RdmaError>>, bool) {
        let mut heaps = self.heaps();
        if let Some(known) = heaps.find(address.as_ptr() as usize) {
            return (known.cloned().map_err(Arc::clone), false);
        }
        if !heaps.make_room() {
            let error = RdmaError::TooManyHeaps {
                device: self.domain.name.clone(),
                count: heaps.len(),
            };
            return (Err(Arc::new(error)), false);
        }
        let region = region();
        let outcome = Memory::of_region(&self.domain, &region);
        let outcome = outcome.map(Arc::new).map_err(Arc::new);
        (heaps.insert(region, outcome), true)
    }

    fn heaps(&self) -> MutexGuard<'_, Registrations<Region, Memory, RdmaError>> {
        // A panic left a table in which every entry is valid on its own.
        let heaps = self.registered.lock();
        heaps.unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest message of a port, in bytes.
    pub(super) fn largest_message(&self, port: u8) -> Result<u32, RdmaError> {
        // SAFETY: a C struct of numbers.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the function fills `attributes`.
        let status =
            unsafe { sys::ibv_query_port(self.domain.context.as_ptr(), port, &mut attributes) };
        check("asking a port what it can do", status)?;
        Ok(attributes.max_msg_sz)
    }
}
