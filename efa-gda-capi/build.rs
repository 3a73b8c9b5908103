//! Sets the soname of `libefa_gda.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without a soname, a program that was linked by path would search for the library at that path only. The soname has
    // no number because cargo makes no links; efa_gda_api_version reports the interface's version.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libefa_gda.so");
}
