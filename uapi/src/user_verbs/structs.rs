//! The request and response structs, named after the C ones without `ib_uverbs_`.

pub mod cq;
pub mod device;
pub mod flow;
pub mod memory;
pub mod qp;
pub mod srq;
pub mod wq;

pub use cq::{
    CqModeration, CreateCqReq, CreateCqResp, DestroyCqReq, DestroyCqResp, ExCreateCq, ExCreateCqResp,
    ExModifyCq, PollCqReq, PollCqResp, ReqNotifyCqReq, ResizeCqReq, ResizeCqResp, Wc,
};
pub use device::{
    AsyncEventDesc, CmdHdr, CompEventDesc, CqModerationCaps, CreateCompChannelReq, CreateCompChannelResp,
    ExCmdHdr, ExQueryDevice, ExQueryDeviceResp, GetContextReq, GetContextResp, OdpCaps, OdpPerTransportCaps,
    QueryDeviceReq, QueryDeviceResp, QueryPortReq, QueryPortResp, RssCaps, TmCaps,
};
pub use flow::{
    CreateFlowReq, CreateFlowResp, DestroyFlowReq, FlowAttr, FlowEthFilter, FlowGreFilter, FlowIpv4Filter,
    FlowIpv6Filter, FlowMplsFilter, FlowSpecActionCount, FlowSpecActionDrop, FlowSpecActionHandle,
    FlowSpecActionTag, FlowSpecEsp, FlowSpecEspFilter, FlowSpecEth, FlowSpecGre, FlowSpecHdr, FlowSpecIpv4,
    FlowSpecIpv6, FlowSpecMpls, FlowSpecTcpUdp, FlowSpecTunnel, FlowTcpUdpFilter, FlowTunnelFilter,
};
pub use memory::{
    AllocMwReq, AllocMwResp, AllocPdReq, AllocPdResp, AttachMcastReq, CloseXrcdReq, CreateAhReq,
    CreateAhResp, DeallocMwReq, DeallocPdReq, DeregMrReq, DestroyAhReq, DetachMcastReq, OpenXrcdReq,
    OpenXrcdResp, RegMrReq, RegMrResp, ReregMrReq, ReregMrResp,
};
pub use qp::{
    AhAttr, CreateQpReq, CreateQpResp, DestroyQpReq, DestroyQpResp, ExCreateQp, ExCreateQpResp, ExModifyQp,
    ExModifyQpResp, GlobalRoute, ModifyQpReq, OpenQpReq, PostRecvReq, PostRecvResp, PostSendReq,
    PostSendResp, QpAttr, QpDest, QueryQpReq, QueryQpResp, RecvWr, SendWr, SendWrAtomic, SendWrRdma,
    SendWrUd, Sge,
};
pub use srq::{
    CreateSrqReq, CreateSrqResp, CreateXsrqReq, DestroySrqReq, DestroySrqResp, ModifySrqReq, PostSrqRecvReq,
    PostSrqRecvResp, QuerySrqReq, QuerySrqResp,
};
pub use wq::{
    ExCreateRwqIndTable, ExCreateRwqIndTableResp, ExCreateWq, ExCreateWqResp, ExDestroyRwqIndTable,
    ExDestroyWq, ExDestroyWqResp, ExModifyWq,
};
