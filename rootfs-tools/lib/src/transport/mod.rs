//! Where images come from and go to.

mod reference;

pub use reference::{Place, ReferenceError, RegistryReference, Tag, Version};
