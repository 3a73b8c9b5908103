//! Decodes ioctls into commands: which attributes each method has, and the form of each. The methods of older commands
//! are in `invoke_write`.

use crate::attributes::{Inputs, Ioctl, UserMemory};
use crate::command::*;
use crate::errno::Errno;
use crate::sys::*;
use crate::{get, invoke_write};

impl Command {
    /// Decodes an ioctl. Inputs that attributes point to are read from `memory`.
    ///
    /// # Errors
    /// - [`Errno::EPROTONOSUPPORT`]: this interface does not have the method or a mandatory attribute.
    /// - [`Errno::EINVAL`]: an attribute is missing or malformed.
    /// - [`Errno::EFAULT`]: an input is not in mapped memory.
    /// - [`Errno::EOPNOTSUPP`]: a newer structure requests something that this interface does not have.
    /// - [`Errno::ENOSPC`]: a structure of an older command is too short.
    /// - [`Errno::ENOENT`]: a handle has more than 32 bits.
    pub fn decode(ioctl: &Ioctl, memory: &impl UserMemory) -> Result<Self, Errno> {
        let inputs = Inputs::new(ioctl, memory);
        let command = match (u32::from(ioctl.object), u32::from(ioctl.method)) {
            (UVERBS_OBJECT_DEVICE, method) => device(method, &inputs)?,
            (UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY) => {
                Self::DestroyDomain { handle: required(inputs.handle(UVERBS_ATTR_DESTROY_PD_HANDLE)?)? }
            }
            (UVERBS_OBJECT_MR, method) => region(method, &inputs)?,
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => completion_queue(&inputs)?,
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => {
                inputs.output(UVERBS_ATTR_DESTROY_CQ_RESP, size_of::<ib_uverbs_destroy_cq_resp>())?;
                Self::DestroyCompletionQueue {
                    handle: required(inputs.handle(UVERBS_ATTR_DESTROY_CQ_HANDLE)?)?,
                }
            }
            (UVERBS_OBJECT_QP, method) => queue_pair(method, &inputs)?,
            (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY) => Self::DestroyAddressHandle {
                handle: required(inputs.handle(UVERBS_ATTR_DESTROY_AH_HANDLE)?)?,
            },
            (UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC) => {
                inputs.new_handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)?;
                Self::AllocateEvents
            }
            (UVERBS_OBJECT_COMP_CNTR, method) => counter(method, &inputs)?,
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        inputs.finish()?;
        Ok(command)
    }
}

pub(crate) fn required<T>(value: Option<T>) -> Result<T, Errno> {
    value.ok_or(Errno::EINVAL)
}

fn device(method: u32, inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    Ok(match method {
        UVERBS_METHOD_INVOKE_WRITE => return invoke_write::decode(inputs),
        UVERBS_METHOD_GET_CONTEXT => {
            inputs.output(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4)?;
            inputs.output(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8)?;
            inputs.output(UVERBS_ATTR_UHW_OUT, 0)?;
            let driver = inputs.structure::<efa_ibv_alloc_ucontext_cmd>(UVERBS_ATTR_UHW_IN, 0)?;
            let driver = driver.unwrap_or_default();
            Command::GetContext { supported: get!(&driver, efa_ibv_alloc_ucontext_cmd, supported_caps) }
        }
        UVERBS_METHOD_QUERY_CONTEXT => {
            inputs.output(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, 4)?;
            inputs.output(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, 8)?;
            inputs.output(UVERBS_ATTR_UHW_OUT, 0)?;
            Command::QueryContext
        }
        UVERBS_METHOD_QUERY_PORT => {
            required(inputs.output(UVERBS_ATTR_QUERY_PORT_RESP, size_of::<ib_uverbs_query_port_resp>())?)?;
            Command::QueryPort { port: required(inputs.u64(UVERBS_ATTR_QUERY_PORT_PORT_NUM)?)? }
        }
        UVERBS_METHOD_QUERY_PORT_SPEED => {
            required(inputs.output(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, 8)?)?;
            Command::QueryPortSpeed { port: port_number(inputs, UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM)? }
        }
        UVERBS_METHOD_QUERY_GID_TABLE => {
            inputs.u32(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)?;
            required(inputs.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, 8)?)?;
            Command::QueryGidTable {
                entry_size: required(inputs.u64(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE)?)?,
                capacity: required(inputs.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, 0)?)?,
            }
        }
        UVERBS_METHOD_QUERY_GID_ENTRY => {
            inputs.u32(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS)?;
            required(
                inputs.output(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, size_of::<ib_uverbs_gid_entry>())?,
            )?;
            Command::QueryGidEntry {
                port: required(inputs.u64(UVERBS_ATTR_QUERY_GID_ENTRY_PORT)?)?,
                index: required(inputs.u64(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX)?)?,
            }
        }
        UVERBS_METHOD_QUERY_COMP_CNTR_CAPS => {
            inputs.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, 4)?;
            inputs.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, 8)?;
            inputs.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, 4)?;
            Command::QueryCounterLimits
        }
        _ => return Err(Errno::EPROTONOSUPPORT),
    })
}

/// A port's number. Its width differs between methods and releases.
fn port_number(inputs: &Inputs<'_, impl UserMemory>, id: u32) -> Result<u64, Errno> {
    let bytes = required(inputs.bytes(id, 1, 8)?)?;
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(whole))
}

fn region(method: u32, inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    Ok(match method {
        UVERBS_METHOD_MR_DESTROY => {
            Command::DestroyMemory { handle: required(inputs.handle(UVERBS_ATTR_DESTROY_MR_HANDLE)?)? }
        }
        UVERBS_METHOD_QUERY_MR => {
            inputs.output(UVERBS_ATTR_QUERY_MR_RESP_LKEY, 4)?;
            inputs.output(UVERBS_ATTR_QUERY_MR_RESP_RKEY, 4)?;
            inputs.output(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, 8)?;
            inputs.output(UVERBS_ATTR_QUERY_MR_RESP_IOVA, 8)?;
            Command::QueryMemory { handle: required(inputs.handle(UVERBS_ATTR_QUERY_MR_HANDLE)?)? }
        }
        EFA_IB_METHOD_MR_QUERY => {
            for id in EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY..=EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID {
                required(inputs.output(id, 2)?)?;
            }
            Command::QueryMemoryPaths { handle: required(inputs.handle(EFA_IB_ATTR_QUERY_MR_HANDLE)?)? }
        }
        UVERBS_METHOD_REG_DMABUF_MR => {
            inputs.new_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE)?;
            required(inputs.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, 4)?)?;
            required(inputs.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, 4)?)?;
            required(inputs.u32(UVERBS_ATTR_REG_DMABUF_MR_FD)?)?;
            let offset = required(inputs.u64(UVERBS_ATTR_REG_DMABUF_MR_OFFSET)?)?;
            Command::RegisterMemory(RegisterMemory {
                domain: required(inputs.handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE)?)?,
                memory: MemorySource::Descriptor(0, offset),
                length: required(inputs.u64(UVERBS_ATTR_REG_DMABUF_MR_LENGTH)?)?,
                address: required(inputs.u64(UVERBS_ATTR_REG_DMABUF_MR_IOVA)?)?,
                access: required(inputs.u32(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)?)?,
                extended: true,
            })
        }
        UVERBS_METHOD_REG_MR => {
            inputs.new_handle(UVERBS_ATTR_REG_MR_HANDLE)?;
            required(inputs.output(UVERBS_ATTR_REG_MR_RESP_LKEY, 4)?)?;
            required(inputs.output(UVERBS_ATTR_REG_MR_RESP_RKEY, 4)?)?;
            let offset = inputs.u64(UVERBS_ATTR_REG_MR_FD_OFFSET)?;
            let start = inputs.u64(UVERBS_ATTR_REG_MR_ADDR)?;
            let memory = match (inputs.descriptor(UVERBS_ATTR_REG_MR_FD), offset, start) {
                (true, Some(offset), None) => MemorySource::Descriptor(0, offset),
                (false, None, Some(start)) => MemorySource::Process(start),
                _ => return Err(Errno::EINVAL),
            };
            Command::RegisterMemory(RegisterMemory {
                domain: required(inputs.handle(UVERBS_ATTR_REG_MR_PD_HANDLE)?)?,
                memory,
                length: required(inputs.u64(UVERBS_ATTR_REG_MR_LENGTH)?)?,
                address: required(inputs.u64(UVERBS_ATTR_REG_MR_IOVA)?)?,
                access: required(inputs.u32(UVERBS_ATTR_REG_MR_ACCESS_FLAGS)?)?,
                extended: true,
            })
        }
        _ => return Err(Errno::EPROTONOSUPPORT),
    })
}

fn completion_queue(inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    inputs.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE)?;
    required(inputs.output(UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4)?)?;
    inputs.output(UVERBS_ATTR_UHW_OUT, 0)?;
    let vector = inputs.u32(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR)?;
    inputs.descriptor(UVERBS_ATTR_CREATE_CQ_EVENT_FD);
    if inputs.u32(UVERBS_ATTR_CREATE_CQ_FLAGS)?.is_some_and(|flags| flags != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    let driver = required(inputs.structure::<efa_ibv_create_cq>(UVERBS_ATTR_UHW_IN, 11)?)?;
    if get!(&driver, efa_ibv_create_cq, comp_mask) != 0
        || get!(&driver, efa_ibv_create_cq, reserved_58) != [0; 5]
    {
        return Err(Errno::EINVAL);
    }
    let length = inputs.u64(UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH)?;
    let start = inputs.u64(UVERBS_ATTR_CREATE_CQ_BUFFER_VA)?;
    let offset = inputs.u64(UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET)?;
    let memory = match (length, start, inputs.descriptor(UVERBS_ATTR_CREATE_CQ_BUFFER_FD), offset) {
        (None, None, false, None) => None,
        (Some(length), Some(start), false, None) => Some((MemorySource::Process(start), length)),
        (Some(length), None, true, Some(offset)) => Some((MemorySource::Descriptor(0, offset), length)),
        _ => return Err(Errno::EINVAL),
    };
    Ok(Command::CreateCompletionQueue(CreateCompletionQueue {
        entries: required(inputs.u32(UVERBS_ATTR_CREATE_CQ_CQE)?)?,
        user_handle: required(inputs.u64(UVERBS_ATTR_CREATE_CQ_USER_HANDLE)?)?,
        channel: inputs.descriptor(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL),
        vector: vector.unwrap_or(0),
        entry_size: get!(&driver, efa_ibv_create_cq, cq_entry_size),
        sub_queues: get!(&driver, efa_ibv_create_cq, num_sub_cqs),
        flags: get!(&driver, efa_ibv_create_cq, flags),
        memory,
    }))
}

fn queue_pair(method: u32, inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    Ok(match method {
        UVERBS_METHOD_QP_CREATE => create_queue_pair(inputs)?,
        UVERBS_METHOD_QP_DESTROY => {
            inputs.output(UVERBS_ATTR_DESTROY_QP_RESP, size_of::<ib_uverbs_destroy_qp_resp>())?;
            Command::DestroyQueuePair { handle: required(inputs.handle(UVERBS_ATTR_DESTROY_QP_HANDLE)?)? }
        }
        UVERBS_METHOD_QP_ATTACH_COMP_CNTR => Command::AttachCounter {
            queue_pair: required(inputs.handle(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE)?)?,
            counter: required(inputs.handle(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE)?)?,
            operations: required(inputs.u32(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK)?)?,
        },
        _ => return Err(Errno::EPROTONOSUPPORT),
    })
}

fn create_queue_pair(inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    inputs.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE)?;
    required(inputs.output(UVERBS_ATTR_CREATE_QP_RESP_CAP, size_of::<ib_uverbs_qp_cap>())?)?;
    required(inputs.output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4)?)?;
    inputs.output(UVERBS_ATTR_UHW_OUT, 0)?;
    inputs.descriptor(UVERBS_ATTR_CREATE_QP_EVENT_FD);
    // The flag "all requests signalled" has no effect: an EFA entry always completes.
    inputs.u32(UVERBS_ATTR_CREATE_QP_FLAGS)?;
    let cap_bytes = size_of::<ib_uverbs_qp_cap>();
    let cap = required(inputs.structure::<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_CAP, cap_bytes)?)?;
    let driver = required(inputs.structure::<efa_ibv_create_qp>(UVERBS_ATTR_UHW_IN, 16)?)?;
    if get!(&driver, efa_ibv_create_qp, comp_mask) != 0
        || get!(&driver, efa_ibv_create_qp, reserved_98) != [0; 5]
    {
        return Err(Errno::EINVAL);
    }
    Ok(Command::CreateQueuePair(CreateQueuePair {
        domain: required(inputs.handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE)?)?,
        send_cq: required(inputs.handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE)?)?,
        receive_cq: required(inputs.handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE)?)?,
        user_handle: required(inputs.u64(UVERBS_ATTR_CREATE_QP_USER_HANDLE)?)?,
        capabilities: QueuePairCapabilities {
            max_send_wr: get!(&cap, ib_uverbs_qp_cap, max_send_wr),
            max_recv_wr: get!(&cap, ib_uverbs_qp_cap, max_recv_wr),
            max_send_sge: get!(&cap, ib_uverbs_qp_cap, max_send_sge),
            max_recv_sge: get!(&cap, ib_uverbs_qp_cap, max_recv_sge),
            max_inline_data: get!(&cap, ib_uverbs_qp_cap, max_inline_data),
        },
        kind: required(inputs.u64(UVERBS_ATTR_CREATE_QP_TYPE)?)?,
        driver_kind: get!(&driver, efa_ibv_create_qp, driver_qp_type),
        sq_bytes: get!(&driver, efa_ibv_create_qp, sq_ring_size),
        rq_bytes: get!(&driver, efa_ibv_create_qp, rq_ring_size),
        flags: get!(&driver, efa_ibv_create_qp, flags),
    }))
}

fn counter(method: u32, inputs: &Inputs<'_, impl UserMemory>) -> Result<Command, Errno> {
    Ok(match method {
        UVERBS_METHOD_COMP_CNTR_CREATE => {
            inputs.new_handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE)?;
            Command::CreateCounter {
                completions: buffer(inputs, EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER, 0)?,
                errors: buffer(inputs, EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER, 1)?,
            }
        }
        UVERBS_METHOD_COMP_CNTR_DESTROY => Command::DestroyCounter {
            handle: required(inputs.handle(UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE)?)?,
        },
        UVERBS_METHOD_COMP_CNTR_MODIFY => Command::ModifyCounter {
            handle: required(inputs.handle(UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE)?)?,
            entry: entry(required(inputs.u64(UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY)?)?)?,
            operation: match u32::try_from(required(inputs.u64(UVERBS_ATTR_MODIFY_COMP_CNTR_OP)?)?) {
                Ok(IB_UVERBS_COMP_CNTR_MODIFY_OP_SET) => CounterOperation::Set,
                Ok(IB_UVERBS_COMP_CNTR_MODIFY_OP_INC) => CounterOperation::Add,
                _ => return Err(Errno::EINVAL),
            },
            value: required(inputs.u64(UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE)?)?,
        },
        UVERBS_METHOD_COMP_CNTR_READ => {
            required(inputs.output(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, 8)?)?;
            Command::ReadCounter {
                handle: required(inputs.handle(UVERBS_ATTR_READ_COMP_CNTR_HANDLE)?)?,
                entry: entry(required(inputs.u64(UVERBS_ATTR_READ_COMP_CNTR_ENTRY)?)?)?,
            }
        }
        _ => return Err(Errno::EPROTONOSUPPORT),
    })
}

fn entry(number: u64) -> Result<CounterEntry, Errno> {
    match u32::try_from(number) {
        Ok(IB_UVERBS_COMP_CNTR_ENTRY_COMP) => Ok(CounterEntry::Completions),
        Ok(IB_UVERBS_COMP_CNTR_ENTRY_ERR) => Ok(CounterEntry::Errors),
        _ => Err(Errno::EINVAL),
    }
}

/// The description of a counter's memory. `descriptor` is the index of its descriptor in
/// [`crate::protocol::descriptor_sources`].
fn buffer(
    inputs: &Inputs<'_, impl UserMemory>,
    id: u32,
    descriptor: usize,
) -> Result<BufferDescription, Errno> {
    let bytes = inputs.structure::<ib_uverbs_buffer_desc>(id, size_of::<ib_uverbs_buffer_desc>())?;
    let bytes = required(bytes)?;
    if get!(&bytes, ib_uverbs_buffer_desc, flags) != 0 {
        return Err(Errno::EINVAL);
    }
    let address = get!(&bytes, ib_uverbs_buffer_desc, addr);
    let memory = match get!(&bytes, ib_uverbs_buffer_desc, type_) {
        IB_UVERBS_BUFFER_TYPE_DMABUF => MemorySource::Descriptor(descriptor, address),
        IB_UVERBS_BUFFER_TYPE_VA => MemorySource::Process(address),
        _ => return Err(Errno::EINVAL),
    };
    Ok(BufferDescription { memory, length: get!(&bytes, ib_uverbs_buffer_desc, length) })
}
