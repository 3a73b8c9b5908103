//! Reads and writes fields of C structures in byte slices, at the offsets and with the types of the generated layout.

/// An integer or byte array in such a structure, in the byte order of the machine.
pub trait Scalar: Copy + Default {
    /// Reads the value at offset `at`; 0 if the slice is too short, as a kernel reads the structure of an older
    /// program.
    fn load(bytes: &[u8], at: usize) -> Self;
    /// Writes the value at offset `at`. A slice that is too short does not change.
    fn store(self, bytes: &mut [u8], at: usize);
}

macro_rules! scalar {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn load(bytes: &[u8], at: usize) -> Self {
                bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| Self::from_ne_bytes(*chunk))
            }

            fn store(self, bytes: &mut [u8], at: usize) {
                if let Some(chunk) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                    *chunk = self.to_ne_bytes();
                }
            }
        }
    )*};
}

scalar!(u8, u16, u32, u64, i32);

impl<const N: usize> Scalar for [u8; N]
where
    Self: Default,
{
    fn load(bytes: &[u8], at: usize) -> Self {
        bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
    }

    fn store(self, bytes: &mut [u8], at: usize) {
        if let Some(chunk) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *chunk = self;
        }
    }
}

/// Reads the field at offset `at`. `_type` only infers its type.
pub fn get_field<T, F: Scalar>(bytes: &[u8], at: usize, _type: fn(&T) -> F) -> F {
    F::load(bytes, at)
}

/// Writes the field at offset `at`. `_type` only makes the compiler compare types.
pub fn put_field<T, F: Scalar>(bytes: &mut [u8], at: usize, value: F, _type: fn(&T) -> F) {
    value.store(bytes, at);
}

/// `get!(bytes, structure, field)` reads a field of the structure in `bytes`.
#[macro_export]
macro_rules! get {
    ($bytes:expr, $type:ty, $($field:ident).+) => {
        $crate::get_field($bytes, ::core::mem::offset_of!($type, $($field).+), |s: &$type| s.$($field).+)
    };
}

/// `encode!(structure { field: value, … })` returns the structure's bytes. Other fields are 0.
#[macro_export]
macro_rules! encode {
    ($type:ty { $($($field:ident).+ : $value:expr),* $(,)? }) => {{
        let mut bytes = vec![0_u8; ::core::mem::size_of::<$type>()];
        $($crate::put_field(
            &mut bytes,
            ::core::mem::offset_of!($type, $($field).+),
            $value,
            |s: &$type| s.$($field).+,
        );)*
        bytes
    }};
}

#[cfg(test)]
mod tests {
    use crate::sys::ib_uverbs_ah_attr;

    #[test]
    fn a_field_is_written_and_read_at_the_offset_of_the_layout() {
        let bytes = encode!(ib_uverbs_ah_attr { grh.flow_label: 0x0102_0304, is_global: 9 });
        assert_eq!(get!(&bytes, ib_uverbs_ah_attr, grh.flow_label), 0x0102_0304);
        assert_eq!(get!(&bytes, ib_uverbs_ah_attr, is_global), 9);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 5);
    }

    #[test]
    fn a_field_past_the_end_of_a_short_structure_is_zero() {
        let bytes = encode!(ib_uverbs_ah_attr { is_global: 9 });
        assert_eq!(get!(&bytes[..24], ib_uverbs_ah_attr, is_global), 0);
    }
}
