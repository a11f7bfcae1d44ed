import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.FsDatasetSpi;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.FsVolumeSpi;
import org.apache.hadoop.hdfs.server.datanode.fsdataset.impl.FsVolumeImpl;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;

/**
 * A NameNode and two DataNodes in one process, on loopback and on the data of its folder.
 *
 * Arguments: folder, the NameNode's port, the control port. The control port takes one command a connection and
 * answers with one line: ready, safemode on|off, fsyncs, quota PATH FILES BYTES, chmod PATH MODE,
 * fill, free (the disks of the DataNodes).
 */
public class HdfsServer {
    private static MiniDFSCluster cluster;

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0], "data");
        int port = Integer.parseInt(arguments[1]);
        try (ServerSocket control =
                new ServerSocket(Integer.parseInt(arguments[2]), 8, InetAddress.getLoopbackAddress())) {
            cluster = start(folder, port);
            while (true) {
                try (Socket socket = control.accept();
                        BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream()));
                        PrintWriter out = new PrintWriter(socket.getOutputStream(), true)) {
                    try {
                        out.println(answer(in.readLine().split(" ")));
                    } catch (Exception error) {
                        out.println("error: " + error);
                    }
                }
            }
        }
    }

    private static MiniDFSCluster start(File folder, int port) throws Exception {
        Configuration settings = new HdfsConfiguration();
        settings.set("fs.defaultFS", "hdfs://127.0.0.1:" + port);
        settings.set("dfs.replication", "2");
        settings.set("dfs.permissions.superusergroup", "superusers");
        settings.setInt("dfs.namenode.handler.count", 8);
        // Out of safe mode as soon as the DataNodes have reported, not thirty seconds later.
        settings.setInt("dfs.namenode.safemode.extension", 0);
        settings.setLong("dfs.heartbeat.interval", 1);
        // A file may be closed before the DataNodes have reported its block, which they have acknowledged to the writer.
        // Else hdfs-native, which nearly always asks too early here, waits for half a second. Needs two replicas. It is
        // also the harder case: such a file reads as empty at first.
        settings.setInt("dfs.namenode.file.close.num-committed-allowed", 1);
        boolean isNew = !folder.exists();
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(settings, folder)
                        .nameNodePort(port)
                        .numDataNodes(2)
                        .format(isNew)
                        .manageNameDfsDirs(true)
                        .build();
        cluster.waitActive();
        if (isNew) {
            cluster.getFileSystem().setPermission(new Path("/"), new FsPermission((short) 01777));
        }
        return cluster;
    }

    private static String answer(String[] command) throws Exception {
        DistributedFileSystem files = cluster.getFileSystem();
        switch (command[0]) {
            case "ready":
                return "ready";
            case "safemode":
                files.setSafeMode(command[1].equals("on") ? SafeModeAction.ENTER : SafeModeAction.LEAVE);
                return "done";
            case "fsyncs":
                return "" + fsyncs();
            case "quota":
                files.setQuota(new Path(command[1]), Long.parseLong(command[2]), Long.parseLong(command[3]));
                return "done";
            case "chmod":
                files.setPermission(new Path(command[1]), new FsPermission(Short.parseShort(command[2], 8)));
                return "done";
            case "fill":
                return resize(1);
            case "free":
                return resize(-1);
            default:
                return "error: unknown command";
        }
    }

    /** Let the DataNodes believe that their disks have this capacity, -1 for the real one, and the NameNode hear of it. */
    private static String resize(long capacity) throws Exception {
        for (DataNode node : cluster.getDataNodes()) {
            try (FsDatasetSpi.FsVolumeReferences volumes = node.getFSDataset().getFsVolumeReferences()) {
                for (FsVolumeSpi volume : volumes) {
                    ((FsVolumeImpl) volume).setCapacityForTesting(capacity);
                }
            }
        }
        cluster.triggerHeartbeats();
        return "done";
    }

    /** How often the DataNodes have synced a block, by their own count. JMX would show a number ten seconds old. */
    private static long fsyncs() throws Exception {
        long sum = 0;
        for (DataNode node : cluster.getDataNodes()) {
            Object metrics = node.getMetrics();
            Field count = metrics.getClass().getDeclaredField("fsyncCount");
            count.setAccessible(true);
            sum += ((MutableCounterLong) count.get(metrics)).value();
        }
        return sum;
    }
}
