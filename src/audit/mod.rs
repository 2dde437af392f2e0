//! Who has done what: see [`Tenure::audit`](crate::Tenure::audit) and [`Tenure::acting_as`](crate::Tenure::acting_as).

pub(crate) mod api;
pub(crate) mod store;

pub use store::{AuditFilter, AuditRow};

pub use crate::job::actor::Actor;
