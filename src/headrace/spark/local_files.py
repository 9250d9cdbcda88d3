"""Local files for Spark without a process and a checksum file for each of them.

Hadoop's local file system runs the program `chmod` for each file that it creates (5 to 8 ms, several times in
every micro-batch), and writes a `.crc` file next to it. The classes below ask the operating system itself and
write no checksums. Theirs is a `LocalFileSystem`, because Hadoop and Spark cast to that class: a state store
that uploads a snapshot does, and so does every copy from a local file.

They are compiled by the compiler that Spark brings for its own generated code, and put into Hadoop's cache,
where everything in the JVM that asks for local files finds them. Code that asks for a file system outside the
cache gets Hadoop's own class, which reads and writes the same files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS: Final = "headrace.LocalFiles"
SOURCE: Final = """
package headrace;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends org.apache.hadoop.fs.LocalFileSystem {
    public LocalFiles() {
        super(new RawLocalFiles());
        setWriteChecksum(false);
        setVerifyChecksum(false);
    }
}

class RawLocalFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws java.io.IOException {
        String text = permission.toString().substring(0, 9);
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
    }
}
"""


def install_local_files(session: SparkSession) -> None:
    """Make the JVM of `session` use these files from now on; a second time changes nothing."""
    context: Any = session.sparkContext
    jvm = context._jvm
    files, place = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI("file:///")
    ours = jvm.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
    if files.get(place, ours).getClass().getName() == CLASS:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE)
    ours.setClassLoader(compiler.getClassLoader())
    ours.set("fs.file.impl", CLASS)
    # Every configuration finds the instance that is cached for the scheme, and that is the next one made.
    files.get(place, ours).close()
    files.get(place, ours)
