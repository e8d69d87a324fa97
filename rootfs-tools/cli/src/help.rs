//! The long texts of `--help`.

/// What all commands have in common.
pub(crate) const ALL: &str = "\
Images are named as in skopeo:
  oci:DIR[:TAG]                        directory in the OCI image layout
  oci-archive:FILE[:TAG]               such a directory as a tar archive
  docker-archive:FILE[:NAME[:TAG]]     what `docker save` writes
  docker://HOST/REPO[:TAG|@DIGEST]     registry; the host is never left out

The store is such a layout itself, for reading: `skopeo inspect oci:DIR/store:base-NAME`.

Output:
  Results go to standard output, progress and errors to standard error. With --json a result is
  one JSON document on a line, whose fields are in the help of the command; each line of progress
  is {\"progress\": PHASE, \"bytes\": N, \"of\": N}, the last two where they are known, and an error
  is {\"error\": TEXT, \"exit\": N}.

Exit codes:
  0   done
  64  the command line, or what it names, cannot be used; a refused image or archive
  65  the store is damaged
  66  no such base, file or image
  69  something is missing or does not answer: a program, a registry, a newer version
  70  a fault of this program
  74  reading or writing failed
  75  busy: a session is open on the layer
  77  not permitted, or a registry that asks for other credentials";

/// `import`.
pub(crate) const IMPORT: &str = "\
Images: oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME[:TAG]],
docker://HOST/REPO[:TAG|@DIGEST].

Every blob is checked against its digest. An OCI manifest is kept to the byte; Docker's becomes
OCI's, with another digest. Nothing gets the name unless all of it was taken. Where a download
breaks off it goes on; what was fetched whole is not fetched again by the next try.

With --json: {name, manifest, chain, bytes, entries, notices, notices_dropped}

Examples:
  rootfs-tools import --name debian12 debian12.tar.zst
  rootfs-tools import --name tools oci:/srv/images:tools
  rootfs-tools import --name debian12 docker://registry.example/team/debian@sha256:4bc3…";

/// `export`.
pub(crate) const EXPORT: &str = "\
Destinations: oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME[:TAG]],
docker://HOST/REPO[:TAG|@DIGEST]. Without a tag it is the name of the base, in a registry `latest`.

A layout that is there is added to. Nothing appears at the destination unless all of it was
written. Without --compress the manifest is that of the store, to the byte. A docker archive has
plain layers and no manifest.

With --json: {name, destination, digest, media_type}, where digest is that of the manifest, or of
the configuration in a docker archive

Examples:
  rootfs-tools export debian12 oci-archive:debian12.oci.tar
  rootfs-tools export --compress gzip debian12 oci:/srv/images:debian12
  rootfs-tools export debian12 docker-archive:debian12.tar:team/debian:12";

/// `push`.
pub(crate) const PUSH: &str = "\
The registry gets the layers that it has not, then the manifest. Plain HTTP is spoken to this
machine alone, unless --insecure; the certificates trusted are the system's, or those of the file
in SSL_CERT_FILE.

With --json: {name, destination, digest, media_type}

Example:
  rootfs-tools push debian12 docker://registry.example/team/debian:12";

/// `build`.
pub(crate) const BUILD: &str = "\
The base does not depend on this machine: host name and resolv.conf are its own, and no file is
newer than SOURCE_DATE_EPOCH (seconds since 1970; by default the begin of this day, UTC). So two
builds from the same packages are the same base, with the same digest.

With --json: as import

Examples:
  rootfs-tools build --suite bookworm
  SOURCE_DATE_EPOCH=1764547200 rootfs-tools build --suite trixie --include jq,python3-minimal";

/// `list`.
pub(crate) const LIST: &str = "\
With --json: [{name, manifest, chain, bytes, entries, pinned, created}]";

/// `show`.
pub(crate) const SHOW: &str = "\
With --json: {name, manifest, chain, bytes, entries, pinned, created, path}";

/// `pin` and `unpin`.
pub(crate) const PIN: &str = "\
With --json: {name, pinned}";

/// `gc`.
pub(crate) const GC: &str = "\
With --json: {names, snapshots, blobs, blob_bytes, young, kept, quarantined}";
