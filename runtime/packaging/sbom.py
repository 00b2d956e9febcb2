#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the bill of materials of the Debian packages in a folder, as SPDX 2.3 JSON: each package with its
SHA-256, and what it depends on, with the versions that are installed here, where the packages were built.

    sbom.py FOLDER VERSION >FOLDER/moe-offload_VERSION.spdx.json

The time in it is SOURCE_DATE_EPOCH's, else the date of debian/changelog, so that one tree gives one file.
"""
import datetime
import email.utils
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def spdx_id(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def described(name, version, checksum=None):
    package = {
        "name": name,
        "SPDXID": spdx_id(name),
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "MIT" if checksum else "NOASSERTION",
        "licenseDeclared": "MIT" if checksum else "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:deb/debian/{name}@{version}",
        }],
    }
    if checksum:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return package


def time_of_release():
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    changelog = pathlib.Path(__file__).parent / "debian" / "changelog"
    stamp = re.search(r"^ -- .*>  (.*)$", changelog.read_text(), re.M).group(1)
    return email.utils.parsedate_to_datetime(stamp).astimezone(datetime.timezone.utc)


def main(folder, version):
    packages, relations = {}, []
    for deb in sorted(pathlib.Path(folder).glob("*.deb")):
        name, depends, recommends = (output_of("dpkg-deb", "-f", deb, field)
                                     for field in ("Package", "Depends", "Recommends"))
        if name.endswith("-dbgsym"):
            continue
        packages[name] = described(name, version, hashlib.sha256(deb.read_bytes()).hexdigest())
        relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", name))
        for kind, wanted in (("DEPENDS_ON", depends), ("OPTIONAL_DEPENDENCY_OF", recommends)):
            for entry in filter(None, (part.strip() for part in wanted.split(","))):
                needed = re.match(r"[a-z0-9.+-]+", entry).group(0)
                if kind == "DEPENDS_ON":
                    relations.append((spdx_id(name), kind, needed))
                else:
                    relations.append((spdx_id(needed), kind, name))
                if needed not in packages and not needed.startswith(("moe-offload", "libmoe-offload")):
                    found = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", needed],
                                           capture_output=True, text=True).stdout
                    packages[needed] = described(needed, found or "NOASSERTION")
    json.dump({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"moe-offload-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/moe-offload-{version}",
        "creationInfo": {
            "created": time_of_release().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: moe-offload/runtime/packaging/sbom.py"],
        },
        "packages": list(packages.values()),
        "relationships": [{"spdxElementId": of, "relationshipType": kind, "relatedSpdxElement": spdx_id(to)}
                          for of, kind, to in relations],
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: sbom.py FOLDER VERSION")
    main(*sys.argv[1:])
