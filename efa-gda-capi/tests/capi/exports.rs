//! What the headers declare, what the libraries export, and in which version.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use efa_gda_test_support::compile::{self, compile};
use efa_gda_test_support::{TempDir, output};
use object::Endianness;
use object::elf::{DT_SONAME, FileHeader64};
use object::read::archive::ArchiveFile;
use object::read::elf::FileHeader;
use object::read::{Object, ObjectSymbol, SymbolKind};

use super::{Program, headers, libraries, library, link, program, root, strict};

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in headers() {
        let text = std::fs::read_to_string(header).unwrap();
        for code in text.split("/*").filter_map(|part| part.split_once("*/")) {
            for declared in code.1.split('(').rev().skip(1) {
                let name = declared.rsplit([' ', '*', '\n']).next().unwrap();
                if name.starts_with("efa_gda_") || name.starts_with("nvshmemt_") {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    assert!(names.contains("efa_gda_api_version") && names.contains("nvshmemt_efa_gda_fini"), "{names:?}");
    names
}

/// The functions that a shared library exports.
fn exported(file: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(file).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let exported =
        file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    exported.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn the_headers_compile_as_c_and_as_cplusplus() {
    for header in headers() {
        for (compiler, language) in [(compile::c(), "c"), (compile::cxx(), "c++")] {
            let mut command = strict(compiler);
            command.args(["-fsyntax-only", "-x", language]).arg(&header);
            if !compile(&mut command) {
                return;
            }
        }
    }
}

#[test]
fn the_shared_libraries_export_the_functions_of_the_headers_and_no_others() {
    let map = std::fs::read_to_string(root().join("efa_gda.map")).unwrap();
    let names =
        map.lines().filter_map(|line| line.trim().strip_suffix(';').filter(|name| name.contains('_')));
    assert_eq!(names.map(str::to_owned).collect::<BTreeSet<_>>(), declared(), "of efa_gda.map");
    assert_eq!(exported(&library()), declared(), "of link.sh");
    assert_eq!(exported(&libraries().shared), declared(), "of cargo");
}

#[test]
fn the_static_library_shows_the_functions_of_the_headers_and_no_others_of_this_project() {
    let bytes = std::fs::read(&libraries().archive).unwrap();
    let archive = ArchiveFile::parse(&*bytes).unwrap();
    let mut names = BTreeSet::new();
    for member in archive.members() {
        let object = object::File::parse(member.unwrap().data(&*bytes).unwrap()).unwrap();
        for symbol in object.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global()) {
            let hidden = matches!(
                symbol.flags(),
                object::SymbolFlags::Elf { st_other, .. } if st_other.visibility() == object::elf::STV_HIDDEN
            );
            let name = symbol.name().unwrap();
            // Others are of Rust's runtime, whose names are mangled or are those of the C library.
            let of_this_project = ["efa_", "nvshmem", "__nvshmem", "put_", "run_"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            if !hidden && of_this_project {
                names.insert(name.to_owned());
            }
        }
    }
    assert_eq!(names, declared());
}

/// The node of the functions' versions, of the interface's version in the header.
fn node() -> String {
    let [header, _] = headers().map(|header| std::fs::read_to_string(header).unwrap());
    let version = header.lines().find_map(|line| line.strip_prefix("#define EFA_GDA_API_VERSION "));
    format!("EFA_GDA_{}", version.unwrap().trim())
}

#[test]
fn every_export_has_the_version_of_the_interface() {
    let bytes = std::fs::read(library()).unwrap();
    let elf = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = elf.endian().unwrap();
    let sections = elf.sections(endian, &*bytes).unwrap();
    let versions = sections.versions(endian, &*bytes).unwrap().expect("the library has symbol versions");
    let symbols = object::File::parse(&*bytes).unwrap();
    let mut versioned = BTreeSet::new();
    for symbol in symbols.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let index = versions.version_index(endian, symbol.index());
        if let (true, Some(version)) = (symbol.is_definition(), versions.version(index.into()).unwrap()) {
            assert_eq!(version.name(), node().as_bytes(), "{}", symbol.name().unwrap());
            versioned.insert(symbol.name().unwrap().to_owned());
        }
    }
    assert_eq!(versioned, declared());
}

#[test]
fn a_program_of_another_version_does_not_start() {
    let folder = TempDir::new("capi-version");
    let Some(program) = program(Program::Transport, &folder) else { return };
    // The library as a later version links it.
    for name in ["link.sh", "efa_gda.map"] {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        std::fs::write(folder.path().join(name), text.replace(&node(), "EFA_GDA_999")).unwrap();
    }
    let later = folder.path().join("libefa_gda.so");
    link(&folder.path().join("link.sh"), &libraries().archive, &later);
    let started = output(Command::new(program).arg("misuse").env("LD_PRELOAD", &later));
    let text = String::from_utf8_lossy(&started.stderr);
    assert!(!started.status.success() && text.contains(&node()), "{}: {text}", started.status);
}

#[test]
fn the_soname_is_the_name_of_the_file() {
    for file in [library(), libraries().shared.clone()] {
        let bytes = std::fs::read(file).unwrap();
        let elf = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
        let endian = elf.endian().unwrap();
        let dynamic = elf.sections(endian, &*bytes).unwrap().dynamic_table(endian, &*bytes).unwrap();
        let soname = dynamic.iter().find(|entry| entry.tag == DT_SONAME).expect("the library has a soname");
        assert_eq!(dynamic.string(soname).unwrap(), b"libefa_gda.so");
    }
}
