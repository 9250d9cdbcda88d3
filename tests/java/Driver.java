import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client, driven from outside: one JSON command per line on standard input, one JSON answer per line on
 * standard output, {"answer": …} or {"error": Kafka's code, "detail": …}, each with the command's number. Bytes travel
 * as Base64.
 *
 * <p>It ends when its input ends, without any goodbye to the broker, as a crash would.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int PATIENCE_S = 20;

    private final Map<Integer, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<Integer, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();
    private final Map<Integer, Integer> assignments = new HashMap<>();
    private final Map<String, Admin> admins = new HashMap<>();
    private int lastHandle = 0;

    public static void main(String[] arguments) throws Exception {
        // Libraries that print must not disturb the answers.
        PrintStream answers = System.out;
        System.setOut(System.err);
        Driver driver = new Driver();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(driver.answer(JSON.readTree(line)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(JsonNode command) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("number", command.get("number"));
        try {
            answer.set("answer", JSON.valueToTree(run(command)));
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            answer.put("error", codeOf(cause));
            answer.put("detail", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        return JSON.writeValueAsString(answer);
    }

    private static int codeOf(Throwable cause) {
        // The consumer's own "no offset, and no reset policy" has no number of its own.
        if (cause instanceof InvalidOffsetException) {
            return Errors.OFFSET_OUT_OF_RANGE.code();
        }
        Errors known = Errors.forException(cause);
        // A fenced producer is often told so in the cause of a more general error.
        if (known == Errors.UNKNOWN_SERVER_ERROR && cause.getCause() != null) {
            return codeOf(cause.getCause());
        }
        return known == Errors.UNKNOWN_SERVER_ERROR ? codeFrom(String.valueOf(cause.getMessage())) : known.code();
    }

    /** Where the client wraps an answer that it did not expect, only the error's own text remains. */
    private static int codeFrom(String message) {
        for (Errors candidate : Errors.values()) {
            if (candidate.message() != null && message.contains(candidate.message())) {
                return candidate.code();
            }
        }
        return Errors.UNKNOWN_SERVER_ERROR.code();
    }

    private Object run(JsonNode command) throws Exception {
        String act = command.get("do").asText();
        if (act.startsWith("producer.")) {
            return produce(act, command);
        }
        if (act.startsWith("consumer.")) {
            return consume(act, command);
        }
        String bootstrap = command.get("bootstrap").asText();
        Admin admin = admins.computeIfAbsent(bootstrap, address -> Admin.create(adminSettings(address)));
        return administer(act, admin, command);
    }

    private static Map<String, Object> adminSettings(String bootstrap) {
        return Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", PATIENCE_S * 1000, "request.timeout.ms", PATIENCE_S * 500);
    }

    // ---- producers

    private Object produce(String act, JsonNode command) throws Exception {
        if (act.equals("producer.open")) {
            Properties settings = settings(command.get("settings"));
            producers.put(++lastHandle, new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
            return lastHandle;
        }
        KafkaProducer<byte[], byte[]> producer = producers.get(command.get("handle").asInt());
        switch (act) {
            case "producer.init" -> producer.initTransactions();
            case "producer.send" -> {
                return send(producer, command.get("topic").asText(), command.get("messages"));
            }
            case "producer.begin" -> producer.beginTransaction();
            case "producer.offsets" -> {
                KafkaConsumer<byte[], byte[]> consumer = consumers.get(command.get("consumer").asInt());
                producer.sendOffsetsToTransaction(positions(command.get("offsets")), consumer.groupMetadata());
            }
            case "producer.commit" -> producer.commitTransaction();
            case "producer.abort" -> producer.abortTransaction();
            case "producer.close" -> {
                producers.remove(command.get("handle").asInt());
                producer.close(Duration.ofSeconds(1));
            }
            default -> throw new IllegalArgumentException(act);
        }
        return null;
    }

    private static Object send(KafkaProducer<byte[], byte[]> producer, String topic, JsonNode messages)
            throws Exception {
        List<Future<RecordMetadata>> sending = new ArrayList<>();
        for (JsonNode message : messages) {
            Integer partition = message.hasNonNull("partition") ? message.get("partition").asInt() : null;
            Long timestamp = message.hasNonNull("timestamp_ms") ? message.get("timestamp_ms").asLong() : null;
            ProducerRecord<byte[], byte[]> sent =
                    new ProducerRecord<>(topic, partition, timestamp, bytes(message.get("key")), bytes(message.get("value")));
            for (JsonNode header : message.get("headers")) {
                sent.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
            sending.add(producer.send(sent));
        }
        List<Object> reports = new ArrayList<>();
        for (Future<RecordMetadata> report : sending) {
            RecordMetadata where = report.get(PATIENCE_S, TimeUnit.SECONDS);
            reports.add(List.of(where.partition(), where.hasOffset() ? where.offset() : -1L));
        }
        return reports;
    }

    // ---- consumers

    private Object consume(String act, JsonNode command) {
        if (act.equals("consumer.open")) {
            Properties settings = settings(command.get("settings"));
            consumers.put(++lastHandle, new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer()));
            assignments.put(lastHandle, 0);
            return lastHandle;
        }
        int handle = command.get("handle").asInt();
        KafkaConsumer<byte[], byte[]> consumer = consumers.get(handle);
        Duration patience = Duration.ofSeconds(PATIENCE_S);
        switch (act) {
            case "consumer.assign" -> consumer.assign(partitions(command.get("partitions")));
            case "consumer.subscribe" -> consumer.subscribe(texts(command.get("topics")), listener(handle));
            case "consumer.poll" -> {
                List<Object> received = new ArrayList<>();
                consumer.poll(Duration.ofMillis(command.get("timeout_ms").asLong())).forEach(each -> received.add(describe(each)));
                return received;
            }
            case "consumer.seek" -> consumer.seek(partition(command.get("partition")), command.get("offset").asLong());
            case "consumer.position" -> {
                return consumer.position(partition(command.get("partition")), patience);
            }
            case "consumer.assignment" -> {
                return pairs(consumer.assignment());
            }
            case "consumer.assignments" -> {
                return assignments.get(handle);
            }
            case "consumer.commit" -> consumer.commitSync(positions(command.get("offsets")), patience);
            case "consumer.committed" -> {
                TopicPartition wanted = partition(command.get("partition"));
                OffsetAndMetadata found = consumer.committed(Set.of(wanted), patience).get(wanted);
                return found == null ? null : found.offset();
            }
            case "consumer.close" -> {
                consumers.remove(handle);
                consumer.close(CloseOptions.timeout(Duration.ofSeconds(5)));
            }
            default -> throw new IllegalArgumentException(act);
        }
        return null;
    }

    private ConsumerRebalanceListener listener(int handle) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                assignments.merge(handle, 1, Integer::sum);
            }
        };
    }

    private static Object describe(ConsumerRecord<byte[], byte[]> received) {
        List<Object> headers = new ArrayList<>();
        for (Header header : received.headers()) {
            headers.add(java.util.Arrays.asList(header.key(), text(header.value())));
        }
        Map<String, Object> described = new HashMap<>();
        described.put("topic", received.topic());
        described.put("partition", received.partition());
        described.put("offset", received.offset());
        described.put("key", text(received.key()));
        described.put("value", text(received.value()));
        described.put("headers", headers);
        described.put("timestamp_ms", received.timestamp());
        return described;
    }

    // ---- administration

    private static Object administer(String act, Admin admin, JsonNode command) throws Exception {
        if (act.startsWith("topic.")) {
            return administerTopic(act, admin, command);
        }
        switch (act) {
            case "group.list" -> {
                return admin.listGroups().all().get().stream().map(group -> group.groupId()).toList();
            }
            case "group.describe" -> {
                String group = command.get("group").asText();
                return describe(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get());
            }
            case "group.delete" -> admin.deleteConsumerGroups(List.of(command.get("group").asText())).all().get();
            case "group.delete_offsets" -> {
                TopicPartition wanted = partition(command.get("partition"));
                admin.deleteConsumerGroupOffsets(command.get("group").asText(), Set.of(wanted)).partitionResult(wanted).get();
            }
            default -> throw new IllegalArgumentException(act);
        }
        return null;
    }

    private static Object administerTopic(String act, Admin admin, JsonNode command) throws Exception {
        String topic = command.path("topic").asText();
        switch (act) {
            case "topic.list" -> {
                return admin.listTopics().names().get();
            }
            case "topic.partitions" -> {
                return admin.describeTopics(List.of(topic)).topicNameValues().get(topic).get().partitions().size();
            }
            case "topic.create" -> {
                NewTopic made = new NewTopic(topic, command.get("partitions").asInt(), (short) command.get("replicas").asInt());
                admin.createTopics(List.of(made.configs(map(command.get("configs"))))).all().get();
            }
            case "topic.delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topic.add_partitions" ->
                    admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(command.get("total").asInt()))).all().get();
            case "topic.configs" -> {
                return configs(admin, topic);
            }
            case "topic.alter_configs" -> alterConfigs(admin, topic, command.get("changes"));
            case "topic.delete_records" -> {
                TopicPartition wanted = partition(command.get("partition"));
                RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
                return admin.deleteRecords(Map.of(wanted, before)).lowWatermarks().get(wanted).get().lowWatermark();
            }
            case "topic.offset" -> {
                TopicPartition wanted = partition(command.get("partition"));
                ListOffsetsOptions options = new ListOffsetsOptions(IsolationLevel.valueOf(command.get("isolation").asText()));
                return admin.listOffsets(Map.of(wanted, spec(command.get("at"))), options).partitionResult(wanted).get().offset();
            }
            default -> throw new IllegalArgumentException(act);
        }
        return null;
    }

    private static Object configs(Admin admin, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> described = new HashMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            described.put(entry.name(), java.util.Arrays.asList(entry.value(), entry.isDefault()));
        }
        return described;
    }

    private static void alterConfigs(Admin admin, String topic, JsonNode changes) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        changes.fields().forEachRemaining(change -> {
            boolean reset = change.getValue().isNull();
            ConfigEntry entry = new ConfigEntry(change.getKey(), reset ? null : change.getValue().asText());
            operations.add(new AlterConfigOp(entry, reset ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET));
        });
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin.incrementalAlterConfigs(Map.of(resource, operations)).all().get();
    }

    private static OffsetSpec spec(JsonNode at) {
        return switch (at.asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(at.asLong());
        };
    }

    private static Object describe(ConsumerGroupDescription group) {
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : group.members()) {
            Optional<String> instance = member.groupInstanceId();
            members.add(java.util.Arrays.asList(instance.orElse(null), pairs(member.assignment().topicPartitions())));
        }
        return Map.of("state", group.groupState().toString(), "members", members);
    }

    // ---- JSON to Kafka's types and back

    private static Properties settings(JsonNode given) {
        Properties settings = new Properties();
        settings.putAll(map(given));
        return settings;
    }

    private static Map<String, String> map(JsonNode given) {
        Map<String, String> made = new HashMap<>();
        given.fields().forEachRemaining(entry -> made.put(entry.getKey(), entry.getValue().asText()));
        return made;
    }

    private static List<String> texts(JsonNode given) {
        List<String> made = new ArrayList<>();
        given.forEach(each -> made.add(each.asText()));
        return made;
    }

    private static TopicPartition partition(JsonNode pair) {
        return new TopicPartition(pair.get(0).asText(), pair.get(1).asInt());
    }

    private static List<TopicPartition> partitions(JsonNode pairs) {
        List<TopicPartition> made = new ArrayList<>();
        pairs.forEach(pair -> made.add(partition(pair)));
        return made;
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(JsonNode triples) {
        Map<TopicPartition, OffsetAndMetadata> made = new HashMap<>();
        triples.forEach(triple -> made.put(partition(triple), new OffsetAndMetadata(triple.get(2).asLong())));
        return made;
    }

    private static List<Object> pairs(Collection<TopicPartition> partitions) {
        List<Object> made = new ArrayList<>();
        partitions.forEach(each -> made.add(List.of(each.topic(), each.partition())));
        return made;
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
