//! The `tenure` program.

fn main() -> std::process::ExitCode {
    tenure::cli::main()
}
