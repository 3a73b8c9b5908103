//! A closed endpoint has no queues to query.

use efa_gda::fabric::{Enabled, Endpoint, GdaOps};

fn query(ops: &GdaOps, endpoint: Endpoint<Enabled>) {
    let _ = endpoint.close();
    let _ = ops.query_qp_wqs(&endpoint);
}

fn main() {}
