# An image with cryo as it lies in /opt/cryo of a machine, CRIU included, and nothing else. contrib/kubernetes installs it by that, and serves; by hand:
#
#   docker build -t cryo .
#   id=$(docker create cryo) && docker cp $id:/opt/cryo /opt/cryo && docker rm $id
#
# cryo, the shim and cryo-guard are static; cryo-gpu-keeper needs glibc 2.34 of the machine, and CRIU brings its own.
FROM docker.io/library/golang:1.26-bookworm AS build
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build VERSION=$VERSION REVISION=$REVISION
RUN apt-get update -q && apt-get install -y -q --no-install-recommends patchelf && DESTDIR=/out contrib/criu/install && \
    install -D -t /out/opt/cryo/bin bin/cryo bin/containerd-shim-cryo-v1 bin/cryo-guard bin/cryo-gpu-keeper && \
    install -D -m 0644 -t /out/opt/cryo/lib/cryo bin/libcryo-gpu.so && \
    install -D -m 0644 contrib/containerd/cryo.toml /out/opt/cryo/share/containerd.toml

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/opt/cryo /opt/cryo
ENTRYPOINT ["/opt/cryo/bin/cryo"]
CMD ["help"]
