//! An RDMA write from one registered buffer to another, through a mapped queue to itself.
//!
//! On a machine with an EFA adapter and libfabric's efa provider: `cargo run -p efa-gda --example put`.
//! On other machines, on the software adapter, which libfabric finds by the name of the link:
//!
//! ```sh
//! cargo build -p softefa && mkdir -p target/soft && ln -sf "$PWD/target/debug/libsoftefa.so" target/soft/softefa-fi.so
//! FI_PROVIDER_PATH="$PWD/target/soft" cargo run -p efa-gda --example put
//! ```

use std::error::Error;
use std::process::ExitCode;

use efa_gda::error_chain;
use efa_gda::fabric::{Access, Bindings, Buffer, Fabric, Library, Query};
use efa_gda::queue::{MappedQueue, WorkRequest};

const BYTES: usize = 64 << 10;

fn main() -> ExitCode {
    match put() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("put: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn put() -> Result<(), Box<dyn Error>> {
    let library = Library::load()?;
    let info = Query::new().first(&library)?;
    let fabric = Fabric::open(&library, &info)?;
    let domain = fabric.domain(&info)?;
    let addresses = domain.address_vector(16)?;
    // One completion queue for both sides, because receives need that, with an entry for every request and receive.
    let completions = domain.completion_queue(info.completions())?;

    let endpoint = domain.endpoint(&info)?.bind(Bindings::shared(&addresses, &completions))?.enable()?;
    let mut queue = MappedQueue::new(endpoint, &domain.gda_ops()?)?;
    // The peer is this endpoint. Two processes would exchange addresses, and each insert the other's address.
    let peer = queue.insert_peer(&queue.endpoint().address()?)?;

    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let source = Buffer::zeroed(BYTES).ok_or("the source buffer cannot be allocated")?;
    source.write(0, &bytes)?;
    let target = Buffer::zeroed(BYTES).ok_or("the target buffer cannot be allocated")?;
    let source = domain.register(source, Access::WRITE)?;
    let target = domain.register(target, Access::REMOTE_WRITE)?;

    let write = WorkRequest::write(peer, &source, target.remote());
    let report = queue.execute(&write)?;
    let mut arrived = vec![0; BYTES];
    target.buffer().ok_or("the target owns no buffer")?.read(0, &mut arrived)?;
    if arrived != bytes {
        return Err("the write completed, but the target does not hold the source's bytes".into());
    }

    // Children before parents. The work request holds a handle of its source, which cannot be closed before.
    drop(write);
    queue.close()?;
    source.close()?;
    target.close()?;
    completions.close()?;
    addresses.close()?;
    domain.close()?;
    fabric.close()?;
    println!("{BYTES} bytes arrived in {} completion(s)", report.completed);
    Ok(())
}
