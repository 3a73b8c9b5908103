//! The EC2 instance type, and what AWS documents for it.

use super::System;

/// Instance families for which AWS documents GPU-Direct Async: the part of the type's name before the dot.
pub(crate) const GDA_FAMILIES: [&str; 3] = ["p5en", "p6-b200", "p6-b300"];

/// The most EFA adapters, and the GPUs, of a type (EC2 user guide: accelerated computing instances).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices {
    /// The type: "p5en.48xlarge".
    name: &'static str,
    /// EFA adapters, if an interface is attached to each network card that supports EFA.
    pub(crate) adapters: usize,
    /// GPUs.
    pub(crate) gpus: usize,
}

const TYPES: [Devices; 7] = [
    Devices { name: "p4d.24xlarge", adapters: 4, gpus: 8 },
    Devices { name: "p4de.24xlarge", adapters: 4, gpus: 8 },
    Devices { name: "p5.48xlarge", adapters: 32, gpus: 8 },
    Devices { name: "p5e.48xlarge", adapters: 32, gpus: 8 },
    Devices { name: "p5en.48xlarge", adapters: 16, gpus: 8 },
    Devices { name: "p6-b200.48xlarge", adapters: 8, gpus: 8 },
    Devices { name: "p6-b300.48xlarge", adapters: 16, gpus: 8 },
];

impl System {
    /// The instance type by DMI. The error is what DMI says of a machine that is no EC2 instance.
    pub(crate) fn instance_type(&self) -> Result<String, String> {
        let dmi = |file: &str| self.read(format!("/sys/class/dmi/id/{file}")).unwrap_or_default();
        let (vendor, product) = (dmi("sys_vendor"), dmi("product_name"));
        match vendor == "Amazon EC2" {
            true => Ok(product),
            false => Err(format!("DMI vendor \"{vendor}\", product \"{product}\"")),
        }
    }
}

/// The devices of an instance type; None for a type that the table lacks.
pub(crate) fn devices_of(instance: &str) -> Option<Devices> {
    TYPES.into_iter().find(|one| one.name == instance)
}
