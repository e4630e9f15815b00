//! The macro that declares a protobuf enum.

/// Declares a protobuf enum: a newtype over its number with named constants, so that unknown values
/// survive. A constant with another name in the schema has that name after it: `RED = 1 as
/// "COLOR_RED"`. For generated code.
#[macro_export]
macro_rules! open_enum {
    ($(#[$doc:meta])* pub struct $name:ident { $($value:ident = $number:literal $(as $declared:literal)?,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(
            /// The number; possibly one that the schema doesn't name.
            pub i32,
        );

        impl $name {
            $(
                #[doc = ::core::concat!("Number ", ::core::stringify!($number), ".")]
                pub const $value: Self = Self($number);
            )*

            /// The name of the value in the schema, such as `COLOR_RED`, if it has one. If it has
            /// several, the first.
            #[allow(unreachable_patterns, reason = "two names may have one number")]
            pub fn name(self) -> ::core::option::Option<&'static str> {
                match self.0 {
                    $($number => ::core::option::Option::Some([$($declared,)? ::core::stringify!($value)][0]),)*
                    _ => ::core::option::Option::None,
                }
            }
        }

        impl ::core::fmt::Debug for $name {
            #[allow(unreachable_patterns, reason = "two names may have one number")]
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.0 {
                    $($number => f.write_str(::core::stringify!($value)),)*
                    number => ::core::write!(f, "{}({number})", ::core::stringify!($name)),
                }
            }
        }

        impl $crate::codec::Value for $name {
            type Item<'a> = Self;
            const STRIDE: usize = 4;
            const ALIGN: usize = 4;

            fn store<S: $crate::codec::Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize) {
                self.0.store(sink, fixed, at);
            }

            fn store_array<S: $crate::codec::Sink>(values: &[Self], sink: &mut S, at: u32) {
                let mut at = at;
                for value in values {
                    sink.put(at, &value.0.to_le_bytes());
                    at = at.wrapping_add(4);
                }
            }

            fn field(place: $crate::codec::Place<'_>, at: u32) -> Self {
                Self(<i32 as $crate::codec::Value>::field(place, at))
            }

            fn element(place: $crate::codec::Place<'_>) -> Self {
                <Self as $crate::codec::Value>::field(place, 0)
            }

            fn own(item: Self) -> Self {
                item
            }
        }
    };
}
