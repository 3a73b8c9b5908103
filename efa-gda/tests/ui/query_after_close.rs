//! A closed endpoint has no queues to query.

use efa_gda::fabric::{Endpoint, GdaOps};

fn query(ops: &GdaOps, endpoint: Endpoint) {
    let _ = endpoint.close();
    let _ = ops.query_qp_wqs(&endpoint);
}

fn main() {}
