# Two images from one static binary, which needs no library of its image:
#
#   docker build --target tenure .        only that binary: migrate, serve, the command line
#   docker build --target tenure-exec .   with a shell and Debian's tools, for `work --exec`; add your own program to it
#
# Build your own worker in Rust as the first stage does, with its own Cargo.toml.

FROM rust:1.95-bookworm AS build
WORKDIR /tenure
COPY . .
RUN scripts/static /out/tenure

FROM scratch AS tenure
# tenure may verify NATS's certificate by the system's CA certificates.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/tenure /usr/local/bin/tenure
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
# Metrics and health, with TENURE_LISTEN.
EXPOSE 9090
ENTRYPOINT ["/usr/local/bin/tenure"]

FROM debian:bookworm-slim AS tenure-exec
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/tenure /usr/local/bin/tenure
USER 65532:65532
EXPOSE 9090
ENTRYPOINT ["/usr/local/bin/tenure"]
