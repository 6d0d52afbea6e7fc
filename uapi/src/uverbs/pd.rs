//! What is made by write commands and destroyed by methods: protection domains, completion
//! channels, address handles, memory windows and XRC domains; and the channel of asynchronous
//! events.

use crate::method::{DestroyHandle, NewDescriptor};
use crate::uverbs::ObjectClass;

objects! {
    /// A protection domain.
    object Pd = ObjectClass::PD.0, "UVERBS_OBJECT_PD" {
        /// Gives it back; `EBUSY` while anything uses it.
        method PdDestroy = 0, "UVERBS_METHOD_PD_DESTROY" {
            /// The protection domain.
            HANDLE: DestroyHandle<Pd> = 0, "UVERBS_ATTR_DESTROY_PD_HANDLE", mandatory;
        }
    }

    /// A channel of completion events: a descriptor, made by
    /// [`CreateCompChannel`](crate::write::CreateCompChannel).
    object CompChannel = ObjectClass::COMP_CHANNEL.0, "UVERBS_OBJECT_COMP_CHANNEL" {}

    /// An address handle.
    object Ah = ObjectClass::AH.0, "UVERBS_OBJECT_AH" {
        /// Gives it back.
        method AhDestroy = 0, "UVERBS_METHOD_AH_DESTROY" {
            /// The address handle.
            HANDLE: DestroyHandle<Ah> = 0, "UVERBS_ATTR_DESTROY_AH_HANDLE", mandatory;
        }
    }

    /// A memory window.
    object Mw = ObjectClass::MW.0, "UVERBS_OBJECT_MW" {
        /// Gives it back.
        method MwDestroy = 0, "UVERBS_METHOD_MW_DESTROY" {
            /// The memory window.
            HANDLE: DestroyHandle<Mw> = 0, "UVERBS_ATTR_DESTROY_MW_HANDLE", mandatory;
        }
    }

    /// A domain of extended reliable connections.
    object Xrcd = ObjectClass::XRCD.0, "UVERBS_OBJECT_XRCD" {
        /// Closes it.
        method XrcdDestroy = 0, "UVERBS_METHOD_XRCD_DESTROY" {
            /// The domain.
            HANDLE: DestroyHandle<Xrcd> = 0, "UVERBS_ATTR_DESTROY_XRCD_HANDLE", mandatory;
        }
    }

    /// A channel of asynchronous events.
    object AsyncEvent = ObjectClass::ASYNC_EVENT.0, "UVERBS_OBJECT_ASYNC_EVENT" {
        /// Makes one.
        method AsyncEventAlloc = 0, "UVERBS_METHOD_ASYNC_EVENT_ALLOC" {
            /// Its descriptor, to read [`AsyncEventDesc`](crate::write::structs::AsyncEventDesc)
            /// from.
            FD_HANDLE: NewDescriptor<AsyncEvent> = 0, "UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE", mandatory;
        }
    }
}
