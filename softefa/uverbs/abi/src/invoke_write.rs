//! The older commands, which travel inside the method INVOKE_WRITE. Methods of the newer interface are in `decode`.

use crate::attributes::{Inputs, UserMemory};
use crate::command::{Command, MemorySource, ModifyQueuePair, RegisterMemory};
use crate::decode::required;
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
            check_output(inputs, if extended { 8 } else { size_of::<ib_uverbs_query_device_resp>() })?;
            // The extended command has a mask that must be 0.
            if extended && inputs.bytes(UVERBS_ATTR_CORE_IN, 8, 8)?.is_some_and(|mask| mask != [0; 8]) {
                return Err(Errno::EINVAL);
            }
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::QueryDevice { extended }
        }
        (IB_USER_VERBS_CMD_ALLOC_PD, false) => {
            check_output(inputs, size_of::<ib_uverbs_alloc_pd_resp>())?;
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::AllocateDomain
        }
        (IB_USER_VERBS_CMD_REG_MR, false) => {
            check_output(inputs, size_of::<ib_uverbs_reg_mr_resp>())?;
            let input = core::<ib_uverbs_reg_mr>(inputs)?;
            Command::RegisterMemory(RegisterMemory {
                domain: get!(&input, ib_uverbs_reg_mr, pd_handle),
                memory: MemorySource::Process(get!(&input, ib_uverbs_reg_mr, start)),
                length: get!(&input, ib_uverbs_reg_mr, length),
                address: get!(&input, ib_uverbs_reg_mr, hca_va),
                access: get!(&input, ib_uverbs_reg_mr, access_flags),
                extended: false,
            })
        }
        (IB_USER_VERBS_CMD_CREATE_AH, false) => {
            check_output(inputs, size_of::<ib_uverbs_create_ah_resp>())?;
            let input = core::<ib_uverbs_create_ah>(inputs)?;
            if get!(&input, ib_uverbs_create_ah, attr.port_num) != 1 {
                return Err(Errno::EINVAL);
            }
            Command::CreateAddressHandle {
                domain: get!(&input, ib_uverbs_create_ah, pd_handle),
                gid: get!(&input, ib_uverbs_create_ah, attr.grh.dgid),
            }
        }
        (IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false) => {
            check_output(inputs, size_of::<ib_uverbs_create_comp_channel_resp>())?;
            inputs.ignore(UVERBS_ATTR_CORE_IN);
            Command::CreateCompletionChannel
        }
        (IB_USER_VERBS_CMD_MODIFY_QP, extended) => {
            let input = core::<ib_uverbs_modify_qp>(inputs)?;
            if extended {
                inputs.output(UVERBS_ATTR_CORE_OUT, 0)?;
            }
            let mask = get!(&input, ib_uverbs_modify_qp, attr_mask);
            let changes = |bit: u32| mask & bit != 0;
            if changes(IB_QP_PORT) && get!(&input, ib_uverbs_modify_qp, port_num) != 1 {
                return Err(Errno::EINVAL);
            }
            if changes(IB_QP_PKEY_INDEX) && get!(&input, ib_uverbs_modify_qp, pkey_index) != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            Command::ModifyQueuePair(ModifyQueuePair {
                handle: get!(&input, ib_uverbs_modify_qp, qp_handle),
                state: changes(IB_QP_STATE).then(|| get!(&input, ib_uverbs_modify_qp, qp_state)),
                current_state: changes(IB_QP_CUR_STATE)
                    .then(|| get!(&input, ib_uverbs_modify_qp, cur_qp_state)),
                queue_key: changes(IB_QP_QKEY).then(|| get!(&input, ib_uverbs_modify_qp, qkey)),
                send_psn: changes(IB_QP_SQ_PSN).then(|| get!(&input, ib_uverbs_modify_qp, sq_psn)),
                rnr_retry: changes(IB_QP_RNR_RETRY).then(|| get!(&input, ib_uverbs_modify_qp, rnr_retry)),
                mask,
            })
        }
        (IB_USER_VERBS_CMD_QUERY_QP, false) => {
            check_output(inputs, size_of::<ib_uverbs_query_qp_resp>())?;
            let input = core::<ib_uverbs_query_qp>(inputs)?;
            Command::QueryQueuePair { handle: get!(&input, ib_uverbs_query_qp, qp_handle) }
        }
        _ => return Err(Errno::EOPNOTSUPP),
    })
}

/// Checks that the response fits. The errno for too little memory is ENOSPC, by which libibverbs recognises that the
/// kernel has this method.
fn check_output(inputs: &Inputs<'_, impl UserMemory>, minimum: usize) -> Result<(), Errno> {
    match inputs.output(UVERBS_ATTR_CORE_OUT, 0)? {
        Some(length) if length >= minimum => Ok(()),
        _ => Err(Errno::ENOSPC),
    }
}

/// The command's structure. It must not be shorter than `T`.
fn core<T>(inputs: &Inputs<'_, impl UserMemory>) -> Result<Vec<u8>, Errno> {
    match inputs.bytes(UVERBS_ATTR_CORE_IN, 0, usize::from(u16::MAX))? {
        Some(bytes) if bytes.len() >= size_of::<T>() => Ok(bytes),
        _ => Err(Errno::ENOSPC),
    }
}
