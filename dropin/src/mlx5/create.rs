//! CQs, QPs and MRs with attributes of ConnectX devices.

use std::ffi::c_int;

use bareverbs::cq::CqeSize;

use super::query::device_caps;
use super::{context, export};
use crate::abi::cq::{ibv_cq_ex, ibv_cq_init_attr_ex};
use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dm, ibv_mr};
use crate::abi::mlx5::{
    mlx5dv_alloc_dm_attr, mlx5dv_cq_init_attr, mlx5dv_qp_ex, mlx5dv_qp_init_attr, mlx5dv_wq_init_attr,
};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr_ex};
use crate::abi::values::{
    MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE, MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
    MLX5DV_CQ_INIT_ATTR_MASK_FLAGS, MLX5DV_DM_TYPE_MEMIC, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
    MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_CREATE_OOO_DP, MLX5DV_QP_EX_WITH_RAW_WQE,
    MLX5DV_QP_INIT_ATTR_MASK_DC, MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS,
    MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
    MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT, MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ, has,
};
use crate::abi::wq::{ibv_wq, ibv_wq_init_attr};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrNull, check_mask, required};
use crate::cq::{self, CqOptions};
use crate::memory::{PdObject, Reach, register_dmabuf};
use crate::qp::{self, Mlx5Options, QpObject};
use crate::{device_memory, wq};

/// The options of attributes that may be null.
fn cq_options(
    argument: ContextArgument<'_>,
    attr: Option<&mlx5dv_cq_init_attr>,
) -> Result<CqOptions, Failure> {
    let raw = context(argument)?.context.raw();
    let Some(attr) = attr else { return Ok(CqOptions::default()) };
    let mask = attr.comp_mask;
    let known = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE
        | MLX5DV_CQ_INIT_ATTR_MASK_FLAGS
        | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
    check_mask(mask, known.cast_unsigned().into(), Failure::INVALID)?;
    // Padding fills CQEs of 128 bytes, which no queue here makes use of.
    if has(mask, MLX5DV_CQ_INIT_ATTR_MASK_FLAGS) && attr.flags != 0 {
        return Err(Failure::INVALID);
    }
    let cqe_size = match attr.cqe_size {
        _ if !has(mask, MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE) => None,
        64 => Some(CqeSize::Bytes64),
        128 => Some(CqeSize::Bytes128),
        _ => return Err(Failure::INVALID),
    };
    let compressed = has(mask, MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE);
    if compressed {
        let caps = device_caps(&raw)?.cqe_comp_caps;
        let format = u32::from(attr.cqe_comp_res_format);
        // `bareverbs` chooses among the formats, whose completions are the same to the program.
        if caps.max_num == 0 || !format.is_power_of_two() || caps.supported_format.bits() & format == 0 {
            return Err(Failure::INVALID);
        }
    }
    Ok(CqOptions { compressed, cqe_size, ..CqOptions::default() })
}

/// The options of attributes that may be null.
fn qp_options(attr: Option<&mlx5dv_qp_init_attr>) -> Result<Mlx5Options, Failure> {
    let mut options = Mlx5Options::default();
    let Some(attr) = attr else { return Ok(options) };
    let mask = attr.comp_mask;
    let known = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
        | MLX5DV_QP_INIT_ATTR_MASK_DC
        | MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS
        | MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    check_mask(mask, known.cast_unsigned().into(), Failure::INVALID)?;
    if has(mask, MLX5DV_QP_INIT_ATTR_MASK_DC | MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS) {
        return Err(Failure::UNSUPPORTED);
    }
    if has(mask, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) {
        let known_flags = (MLX5DV_QP_CREATE_OOO_DP << 1) - 1;
        let scatter = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
        check_mask(attr.create_flags.into(), known_flags.cast_unsigned().into(), Failure::INVALID)?;
        check_mask(attr.create_flags.into(), scatter.cast_unsigned().into(), Failure::UNSUPPORTED)?;
        if attr.create_flags == scatter.cast_unsigned() {
            return Err(Failure::INVALID);
        }
        if attr.create_flags != 0 {
            let allows = has(attr.create_flags, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE);
            options.scatters_to_cqe = Some(allows);
        }
    }
    if has(mask, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) {
        check_mask(
            attr.send_ops_flags,
            MLX5DV_QP_EX_WITH_RAW_WQE.cast_unsigned().into(),
            Failure::UNSUPPORTED,
        )?;
        options.raw_wqes = attr.send_ops_flags != 0;
    }
    Ok(options)
}

export! {
    fn mlx5dv_create_cq(
        argument: ContextArgument<'_>,
        init: Option<&ibv_cq_init_attr_ex>,
        attr: Option<&mlx5dv_cq_init_attr>,
    ) -> OrNull<ibv_cq_ex> {
        cq::create_extended(argument, required(init)?, &cq_options(argument, attr)?)
    }

    /// Returns the granted capacities in `init`.
    fn mlx5dv_create_qp(
        argument: ContextArgument<'_>,
        init: Option<&mut ibv_qp_init_attr_ex>,
        attr: Option<&mlx5dv_qp_init_attr>,
    ) -> OrNull<ibv_qp> {
        context(argument)?;
        qp::create_extended(argument, required(init)?, qp_options(attr)?)
    }

    /// Without striding RQs.
    fn mlx5dv_create_wq(
        argument: ContextArgument<'_>,
        init: Option<&ibv_wq_init_attr>,
        attr: Option<&mlx5dv_wq_init_attr>,
    ) -> OrNull<ibv_wq> {
        context(argument)?;
        let (init, mask) = (required(init)?, attr.map_or(0, |attr| attr.comp_mask));
        check_mask(mask, MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ.cast_unsigned().into(), Failure::INVALID)?;
        if mask != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        wq::create(argument, init)
    }

    /// Memory for commands and steering (SW ICM) is for DR, which is refused.
    fn mlx5dv_alloc_dm(
        argument: ContextArgument<'_>,
        init: Option<&ibv_alloc_dm_attr>,
        attr: Option<&mlx5dv_alloc_dm_attr>,
    ) -> OrNull<ibv_dm> {
        context(argument)?;
        let (init, attr) = (required(init)?, required(attr)?);
        if attr.r#type.cast_signed() != MLX5DV_DM_TYPE_MEMIC {
            return Err(Failure::UNSUPPORTED);
        }
        check_mask(attr.comp_mask, 0, Failure::INVALID)?;
        device_memory::allocate(argument, init)
    }

    fn mlx5dv_reg_dmabuf_mr(
        pd: Option<&PdObject>,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        mlx5_access: c_int,
    ) -> OrNull<ibv_mr> {
        context(ContextArgument::of(required(pd)?.abi.context))?;
        let reach = match mlx5_access {
            0 => Reach::Usual,
            MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT => Reach::DataDirect,
            _ => return Err(Failure::UNSUPPORTED),
        };
        register_dmabuf(pd, (offset, length), iova, fd, access, reach)
    }

    fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: Option<&QpObject>) -> OrNull<mlx5dv_qp_ex> {
        let qp = required(qp)?;
        context(ContextArgument::of(qp.kernel_object().0))?;
        Ok((&raw const qp.abi.mlx5).cast_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::mlx5::mlx5dv_dc_init_attr;

    fn attr(comp_mask: u64, create_flags: u32, send_ops_flags: u64) -> mlx5dv_qp_init_attr {
        let dc_init_attr = mlx5dv_dc_init_attr { dc_type: 0, dct_access_key: 0 };
        mlx5dv_qp_init_attr { comp_mask, create_flags, dc_init_attr, send_ops_flags }
    }

    #[test]
    fn options_of_qps_are_known_or_refused() {
        let of = |attr: mlx5dv_qp_init_attr| qp_options(Some(&attr));
        let plain = qp_options(None).unwrap();
        assert_eq!((plain.raw_wqes, plain.scatters_to_cqe), (false, None));
        let (flags, operations) = (1, 1 << 2);
        let raw = of(attr(flags | operations, 1 << 4, 1 << 3)).unwrap();
        assert_eq!((raw.raw_wqes, raw.scatters_to_cqe), (true, Some(true)));
        assert_eq!(of(attr(flags, 1 << 3, u64::MAX)).unwrap().scatters_to_cqe, Some(false));
        for (comp_mask, create_flags, send_ops_flags, failure) in [
            (1 << 4, 0, 0, Failure::INVALID),
            (flags, 1 << 3 | 1 << 4, 0, Failure::INVALID),
            (1 << 1, 0, 0, Failure::UNSUPPORTED),
            (1 << 3, 0, 0, Failure::UNSUPPORTED),
            // Out-of-order placement, and flags that no header has.
            (flags, 1 << 7, 0, Failure::UNSUPPORTED),
            (flags, 1 << 31, 0, Failure::INVALID),
            (operations, 0, 1 << 1, Failure::UNSUPPORTED),
            (operations, 0, 1 << 63, Failure::UNSUPPORTED),
        ] {
            assert_eq!(of(attr(comp_mask, create_flags, send_ops_flags)).err(), Some(failure));
        }
    }
}
