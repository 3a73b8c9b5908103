//! The older commands, which travel inside the method INVOKE_WRITE.

use crate::attributes::{Inputs, UserMemory};
use crate::command::{Command, GivenMemory, ModifyQueuePair, RegisterMemory, required};
use crate::errno::Errno;
use crate::get;
use crate::sys::*;

pub(crate) fn decode(inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    let number = required(inputs.u64(UVERBS_ATTR_WRITE_CMD)?)?;
    let number = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
    let extended = number & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
    inputs.ignore(UVERBS_ATTR_UHW_IN);
    inputs.output(UVERBS_ATTR_UHW_OUT, 0)?;
    Ok(match (number & !IB_USER_VERBS_CMD_FLAG_EXTENDED, extended) {
        (IB_USER_VERBS_CMD_QUERY_DEVICE, extended) => {
            room(inputs, if extended { 8 } else { size_of::<ib_uverbs_query_device_resp>() })?;
            // An extended call gives a mask that must be 0.
            if extended && inputs.bytes(UVERBS_ATTR_CORE_IN, 8, 8)?.is_some_and(|given| given != [0; 8]) {
                return Err(Errno::EINVAL);
            }
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::QueryDevice { extended }
        }
        (IB_USER_VERBS_CMD_ALLOC_PD, false) => {
            room(inputs, size_of::<ib_uverbs_alloc_pd_resp>())?;
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::AllocateDomain
        }
        (IB_USER_VERBS_CMD_REG_MR, false) => {
            room(inputs, size_of::<ib_uverbs_reg_mr_resp>())?;
            let given = core::<ib_uverbs_reg_mr>(inputs)?;
            Command::RegisterMemory(RegisterMemory {
                domain: get!(&given, ib_uverbs_reg_mr, pd_handle),
                memory: GivenMemory::Process(get!(&given, ib_uverbs_reg_mr, start)),
                length: get!(&given, ib_uverbs_reg_mr, length),
                address: get!(&given, ib_uverbs_reg_mr, hca_va),
                access: get!(&given, ib_uverbs_reg_mr, access_flags),
                extended: false,
            })
        }
        (IB_USER_VERBS_CMD_CREATE_AH, false) => {
            room(inputs, size_of::<ib_uverbs_create_ah_resp>())?;
            let given = core::<ib_uverbs_create_ah>(inputs)?;
            if get!(&given, ib_uverbs_create_ah, attr.port_num) != 1 {
                return Err(Errno::EINVAL);
            }
            Command::CreateAddressHandle {
                domain: get!(&given, ib_uverbs_create_ah, pd_handle),
                gid: get!(&given, ib_uverbs_create_ah, attr.grh.dgid),
            }
        }
        (IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false) => {
            room(inputs, size_of::<ib_uverbs_create_comp_channel_resp>())?;
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::CreateCompletionChannel
        }
        (IB_USER_VERBS_CMD_MODIFY_QP, extended) => {
            let given = core::<ib_uverbs_modify_qp>(inputs)?;
            if extended {
                inputs.output(UVERBS_ATTR_CORE_OUT, 0)?;
            }
            let mask = get!(&given, ib_uverbs_modify_qp, attr_mask);
            let asked = |bit: u32| mask & bit != 0;
            Command::ModifyQueuePair(ModifyQueuePair {
                handle: get!(&given, ib_uverbs_modify_qp, qp_handle),
                state: asked(IB_QP_STATE).then(|| get!(&given, ib_uverbs_modify_qp, qp_state)),
                queue_key: asked(IB_QP_QKEY).then(|| get!(&given, ib_uverbs_modify_qp, qkey)),
                rnr_retry: asked(IB_QP_RNR_RETRY).then(|| get!(&given, ib_uverbs_modify_qp, rnr_retry)),
                mask,
            })
        }
        (IB_USER_VERBS_CMD_QUERY_QP, false) => {
            room(inputs, size_of::<ib_uverbs_query_qp_resp>())?;
            let given = core::<ib_uverbs_query_qp>(inputs)?;
            Command::QueryQueuePair { handle: get!(&given, ib_uverbs_query_qp, qp_handle) }
        }
        _ => return Err(Errno::EOPNOTSUPP),
    })
}

/// The answer's room; too little is ENOSPC here, by which libibverbs knows this method.
fn room(inputs: &Inputs<'_, impl UserMemory>, least: usize) -> Result<(), Errno> {
    match inputs.output(UVERBS_ATTR_CORE_OUT, 0)? {
        Some(length) if length >= least => Ok(()),
        _ => Err(Errno::ENOSPC),
    }
}

/// The command's own structure, whole.
fn core<T>(inputs: &Inputs<'_, impl UserMemory>) -> Result<Vec<u8>, Errno> {
    match inputs.bytes(UVERBS_ATTR_CORE_IN, 0, usize::from(u16::MAX))? {
        Some(bytes) if bytes.len() >= size_of::<T>() => Ok(bytes),
        _ => Err(Errno::ENOSPC),
    }
}
