FROM rust:1.95-bookworm AS build
WORKDIR /tenure
COPY . .
RUN cargo build --release --locked --features cli,otel --bin tenure

FROM debian:bookworm-slim
RUN useradd --system --create-home tenure
COPY --from=build /tenure/target/release/tenure /usr/local/bin/tenure
USER tenure
# Metrics and health, with TENURE_LISTEN.
EXPOSE 9090
ENTRYPOINT ["tenure"]
