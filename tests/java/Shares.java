import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * What the Java client does in a share group, printed line by line: takes four messages and renews the first, rejects the
 * second, releases the third, accepts the fourth; takes again what comes back; and asks the coordinator.
 *
 * <p>Arguments: bootstrap servers, group, topic.
 */
public final class Shares {
    private static final long PATIENCE_NS = 30_000_000_000L;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String group = args[1];
        String topic = args[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        try (KafkaShareConsumer<String, String> consumer =
                        new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
                Admin admin = Admin.create(settings)) {
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<String, String>> first = take(consumer, 4);
            System.out.println("took " + values(first));
            Deque<AcknowledgeType> types = new ArrayDeque<>(List.of(
                    AcknowledgeType.RENEW, AcknowledgeType.REJECT, AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT));
            for (ConsumerRecord<String, String> record : first) {
                consumer.acknowledge(record, types.pop());
            }
            consumer.commitSync().values().forEach(fault -> System.out.println("said " + fault.isEmpty()));
            System.out.println("again " + values(finish(consumer, 2)));
            ShareGroupDescription described =
                    admin.describeShareGroups(List.of(group)).all().get().get(group);
            System.out.println("members " + described.members().size());
            Map<TopicPartition, ?> offsets = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                    .partitionsToOffsetInfo(group)
                    .get();
            System.out.println("partitions " + offsets.size());
        }
    }

    private static List<ConsumerRecord<String, String>> take(KafkaShareConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE_NS;
        while (taken.size() < count && System.nanoTime() < deadline) {
            consumer.poll(Duration.ofMillis(100)).forEach(taken::add);
        }
        return taken;
    }

    /** The renewed record and the released one, each accepted when it comes again. */
    private static List<ConsumerRecord<String, String>> finish(
            KafkaShareConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE_NS;
        while (taken.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                taken.add(record);
            }
        }
        consumer.commitSync();
        return taken;
    }

    private static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream()
                .map(record -> record.value() + "/" + record.deliveryCount().orElse((short) 0))
                .sorted()
                .toList();
    }
}
