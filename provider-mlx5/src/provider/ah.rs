//! Address handles.

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::handle_guard::HandleGuard;
use bareverbs_provider::request::AhRequest;
use bareverbs_provider::traits::CreatedAh;
use bareverbs_uapi::mlx5::{CommandsWithPayload, CreateAhResp};
use bareverbs_uapi::verbs_values::LinkLayer;
use zerocopy::IntoBytes;

use super::Mlx5;
use crate::address::{self, Link};
use crate::sq::Mlx5Ah;

impl Mlx5 {
    pub(super) fn do_create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        let attr = &request.attr;
        let port = command::query_port(&self.file, attr.port_num)?.legacy_resp;
        let ethernet = port.link_layer == LinkLayer::ETHERNET;
        if ethernet && attr.is_global == 0 {
            return Err(CreateError::Unsupported { feature: Feature::EthernetPathsWithoutGid });
        }
        if ethernet && !self.ucontext.cmds_supp_uhw.contains(CommandsWithPayload::CREATE_AH) {
            return Err(CreateError::Unsupported { feature: Feature::AddressHandles });
        }
        let mut response = CreateAhResp::zeroed();
        let output: &mut [u8] = if ethernet { response.as_mut_bytes() } else { &mut [] };
        // SAFETY: the response has its full size.
        let made = unsafe { command::create_ah(&self.file, request, DriverPayload { input: &[], output }) }?;
        // SAFETY: the address handle was just created and has no other user.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_ah, ()) };
        let link = if ethernet {
            let index = attr.grh.sgid_index.into();
            let gid = command::query_gid_entry(&self.file, attr.port_num.into(), index)?;
            Link::Ethernet { mac: response.dmac, gid_type: gid.gid_type }
        } else {
            Link::InfiniBand
        };
        let ah = Mlx5Ah { vector: address::vector(attr, link) };
        Ok(CreatedAh { handle: guard.disarm().0, ah })
    }
}
