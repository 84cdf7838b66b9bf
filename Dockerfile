# An image with cryo's programs and nothing else, to copy them from:
#
#   docker build -t cryo .
#   id=$(docker create cryo) && docker cp $id:/containerd-shim-cryo-v1 . && docker cp $id:/cryo . && docker cp $id:/cryo-gpu-keeper . && \
#     docker cp $id:/libcryo-gpu.so . && docker rm $id
#
# The programs are static but for cryo-gpu-keeper, which needs glibc 2.34. They run on the host, beside its containerd, runc and CRIU; not in this image.
FROM docker.io/library/golang:1.26-bookworm AS build
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build VERSION=$VERSION REVISION=$REVISION

FROM scratch
COPY --from=build /src/bin/containerd-shim-cryo-v1 /src/bin/cryo /src/bin/cryo-gpu-keeper /src/bin/libcryo-gpu.so /
ENTRYPOINT ["/cryo"]
CMD ["help"]
