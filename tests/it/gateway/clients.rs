//! The clients of `clients/`, each under the same cases: a black box over NATS and SQL.
