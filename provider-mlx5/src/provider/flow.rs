//! Flows with counters.

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::request::CountedFlowRequest;
use bareverbs_uapi::mlx5::{CreateFlowReq, FlowCountersData, FlowCountersDesc};
use bareverbs_uapi::verbs_values::CounterDescription;
use zerocopy::IntoBytes;

/// Creates a flow with a counters object (`mlx5_ib_create_flow`, `mlx5_ib_flow_counters_set_data`
/// of the kernel's driver). The driver reads the description of the counters during the call.
pub(super) fn create_counted(
    file: &DeviceFile,
    request: &CountedFlowRequest<'_>,
) -> Result<u32, CreateError> {
    let descriptions = describe(request.counters);
    let input = payload(&descriptions);
    let payload = DriverPayload { input: &input, output: &mut [] };
    // SAFETY: the payload has the address and the number of `descriptions`, which outlive the call.
    Ok(unsafe { command::create_flow_with(file, request.qp, request.flow, request.specs, payload) }?)
}

/// The description of each counter. Its value has the index of the counter.
fn describe(counters: &[CounterDescription]) -> Vec<FlowCountersDesc> {
    (0..).zip(counters).map(|(index, &description)| FlowCountersDesc { description, index }).collect()
}

/// The driver request. Only the first flow of a counters object describes the counters: the driver
/// rejects another description.
fn payload(descriptions: &[FlowCountersDesc]) -> Vec<u8> {
    if descriptions.is_empty() {
        return CreateFlowReq { ncounters_data: 0, ..CreateFlowReq::zeroed() }.as_bytes().to_vec();
    }
    let head = CreateFlowReq { ncounters_data: 1, ..CreateFlowReq::zeroed() };
    let data = FlowCountersData {
        counters_data: descriptions.as_ptr().expose_provenance() as u64,
        ncounters: descriptions.len() as u32,
        ..FlowCountersData::zeroed()
    };
    [head.as_bytes(), data.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_flow_describes_its_counters() {
        let descriptions = describe(&[CounterDescription::PACKETS, CounterDescription::BYTES]);
        assert_eq!(descriptions.as_bytes(), [[0, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0]].concat());
        let bytes = payload(&descriptions);
        let address = descriptions.as_ptr() as u64;
        assert_eq!(bytes[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], address.to_le_bytes());
        assert_eq!(bytes[16..], [2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn later_flows_describe_no_counters() {
        assert_eq!(payload(&describe(&[])), [0; 8]);
    }
}
