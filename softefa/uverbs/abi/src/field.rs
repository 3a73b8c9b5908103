//! Fields of C structures inside byte slices, by offset and type of the generated layout.

/// Integers that such structures hold, in the byte order of the machine.
pub trait Scalar: Copy + Default {
    /// The value whose bytes start at `at`; 0 where the slice is too short, which is how a kernel
    /// reads a structure of an older program.
    fn load(bytes: &[u8], at: usize) -> Self;
    /// Puts the value at `at`; a slice that is too short stays as it is.
    fn store(self, bytes: &mut [u8], at: usize);
}

macro_rules! scalar {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn load(bytes: &[u8], at: usize) -> Self {
                bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| Self::from_ne_bytes(*chunk))
            }

            fn store(self, bytes: &mut [u8], at: usize) {
                if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                    *place = self.to_ne_bytes();
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
        if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = self;
        }
    }
}

/// The field at `at`; `_type` only tells its type.
pub fn get_field<T, F: Scalar>(bytes: &[u8], at: usize, _type: fn(&T) -> F) -> F {
    F::load(bytes, at)
}

/// Puts the field at `at`; `_type` only makes the compiler compare types.
pub fn put_field<T, F: Scalar>(bytes: &mut [u8], at: usize, value: F, _type: fn(&T) -> F) {
    value.store(bytes, at);
}

/// `get!(bytes, structure, field)`: that field of the structure in `bytes`.
#[macro_export]
macro_rules! get {
    ($bytes:expr, $type:ty, $($field:ident).+) => {
        $crate::get_field($bytes, ::core::mem::offset_of!($type, $($field).+), |s: &$type| s.$($field).+)
    };
}

/// `encode!(structure { field: value, … })`: the structure's bytes, other fields 0.
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
    fn a_field_comes_back_from_where_the_layout_has_it() {
        let bytes = encode!(ib_uverbs_ah_attr { grh.flow_label: 0x0102_0304, is_global: 9 });
        assert_eq!(get!(&bytes, ib_uverbs_ah_attr, grh.flow_label), 0x0102_0304);
        assert_eq!(get!(&bytes, ib_uverbs_ah_attr, is_global), 9);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 5);
    }

    #[test]
    fn a_field_past_a_short_structure_is_zero() {
        let bytes = encode!(ib_uverbs_ah_attr { is_global: 9 });
        assert_eq!(get!(&bytes[..24], ib_uverbs_ah_attr, is_global), 0);
    }
}
