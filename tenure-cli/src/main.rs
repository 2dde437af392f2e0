//! The program `tenure`: the operator's command line, the dashboard, the bench, and workers in any language.

mod access;
mod api;
mod bench;
mod commands;
mod dashboard;
mod exec;
mod lanes;
mod serve;
mod shapes;
mod timeline;

fn main() -> std::process::ExitCode {
    commands::main()
}
