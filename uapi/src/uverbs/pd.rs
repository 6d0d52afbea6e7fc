//! Objects that write commands create and ioctl methods destroy: protection domains, completion
//! channels, address handles, memory windows and XRC domains. Also the asynchronous event channel.

use crate::method::{DestroyHandle, NewDescriptor};
use crate::uverbs::ObjectClass;

objects! {
    /// A protection domain.
    object Pd = ObjectClass::PD.0, "UVERBS_OBJECT_PD" {
        /// Deallocates it; `EBUSY` while an object uses it.
        method PdDestroy = 0, "UVERBS_METHOD_PD_DESTROY" {
            /// The protection domain.
            HANDLE: DestroyHandle<Pd> = 0, "UVERBS_ATTR_DESTROY_PD_HANDLE", mandatory;
        }
    }

    /// A completion event channel: a descriptor, created by
    /// [`CreateCompChannel`](crate::write::CreateCompChannel).
    object CompChannel = ObjectClass::COMP_CHANNEL.0, "UVERBS_OBJECT_COMP_CHANNEL" {}

    /// An address handle.
    object Ah = ObjectClass::AH.0, "UVERBS_OBJECT_AH" {
        /// Destroys it.
        method AhDestroy = 0, "UVERBS_METHOD_AH_DESTROY" {
            /// The address handle.
            HANDLE: DestroyHandle<Ah> = 0, "UVERBS_ATTR_DESTROY_AH_HANDLE", mandatory;
        }
    }

    /// A memory window.
    object Mw = ObjectClass::MW.0, "UVERBS_OBJECT_MW" {
        /// Destroys it.
        method MwDestroy = 0, "UVERBS_METHOD_MW_DESTROY" {
            /// The memory window.
            HANDLE: DestroyHandle<Mw> = 0, "UVERBS_ATTR_DESTROY_MW_HANDLE", mandatory;
        }
    }

    /// An XRC domain.
    object Xrcd = ObjectClass::XRCD.0, "UVERBS_OBJECT_XRCD" {
        /// Closes an XRC domain.
        method XrcdDestroy = 0, "UVERBS_METHOD_XRCD_DESTROY" {
            /// The domain.
            HANDLE: DestroyHandle<Xrcd> = 0, "UVERBS_ATTR_DESTROY_XRCD_HANDLE", mandatory;
        }
    }

    /// An asynchronous event channel.
    object AsyncEvent = ObjectClass::ASYNC_EVENT.0, "UVERBS_OBJECT_ASYNC_EVENT" {
        /// Creates one.
        method AsyncEventAlloc = 0, "UVERBS_METHOD_ASYNC_EVENT_ALLOC" {
            /// Its descriptor. Reads return
            /// [`AsyncEventDesc`](crate::write::structs::AsyncEventDesc).
            FD_HANDLE: NewDescriptor<AsyncEvent> = 0, "UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE", mandatory;
        }
    }
}
