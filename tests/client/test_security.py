"""How the name of a security profile becomes options: from the file, the environment and files of secrets."""

import copy
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import headrace
from headrace.client.bootstrap import client_config
from headrace.client.security import OPTIONS, BadProfile, Security, resolve
from headrace.errors import Misuse
from headrace.settings import Settings

SCRAM = """
[broker]
address = "kafka-1:9094,kafka-2:9094"
security = "production"

[security.production]
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "jobs"
sasl.password = "in the file"
ssl.ca.location = "ca.pem"

[security.tokens]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "OAUTHBEARER"
"sasl.oauthbearer.callback" = "tests.client.test_security:token"
"sasl.oauthbearer.extensions" = "logicalCluster=lkc-1"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.toml").write_text(SCRAM)
    (tmp_path / "ca.pem").write_text("")
    return tmp_path


def token(_: str) -> tuple[str, float]:
    return "a token", 9e9


def settings(folder: Path, environment: Mapping[str, str] | None = None) -> Settings:
    return Settings.read(environment=environment or {}, folder=folder)


def edited(project: Path, before: str, after: str) -> Settings:
    file = project / "headrace.toml"
    assert before in SCRAM
    file.write_text(SCRAM.replace(before, after))
    return settings(project)


def test_the_file_names_the_profile_and_has_its_options(project: Path) -> None:
    address = settings(project).broker()
    assert str(address) == "production://kafka-1:9094,kafka-2:9094"
    security = resolve("production", settings(project))
    assert dict(security.options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "jobs",
        "sasl.password": "in the file",
        "ssl.ca.location": str(project / "ca.pem"),
    }


@pytest.mark.parametrize(
    ("argument", "environment", "found"),
    [
        (None, {"HEADRACE_SECURITY_PROFILE": "tokens"}, "tokens://kafka-1:9094,kafka-2:9094"),
        ("b:1", {}, "production://b:1"),
        ("tokens://b:1", {"HEADRACE_SECURITY_PROFILE": "other"}, "tokens://b:1"),
        ("PLAINTEXT://b:1", {}, "b:1"),
        (None, {"HEADRACE_BROKER": "b:1", "HEADRACE_SECURITY_PROFILE": "PLAINTEXT"}, "b:1"),
    ],
)
def test_an_argument_wins_over_the_environment_and_that_over_the_file(
    project: Path, argument: str | None, environment: dict[str, str], found: str
) -> None:
    assert str(settings(project, environment).broker(argument)) == found


def test_a_broker_without_a_profile_is_plaintext(tmp_path: Path) -> None:
    address = settings(tmp_path).broker_or_default()
    assert str(address) == "127.0.0.1:9092"
    assert resolve(address.profile, settings(tmp_path)).get("security.protocol") == "PLAINTEXT"


def test_the_environment_alone_can_be_the_profile(tmp_path: Path) -> None:
    environment = {
        "HEADRACE_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "HEADRACE_SASL_MECHANISM": "PLAIN",
        "HEADRACE_SASL_USERNAME": "jobs",
        "HEADRACE_SASL_PASSWORD": "secret",
    }
    found = settings(tmp_path, environment)
    assert str(found.broker("b:1")) == "environment://b:1"
    assert resolve("environment", found).get("sasl.password") == "secret"
    # The driver named a profile of its file, and the workers have only variables.
    assert resolve("production", found).get("sasl.password") == "secret"


def test_a_variable_overrides_one_option(project: Path) -> None:
    found = resolve("production", settings(project, {"HEADRACE_SASL_PASSWORD": "in the environment"}))
    assert found.get("sasl.password") == "in the environment"
    assert found.get("sasl.username") == "jobs"


def test_a_secret_is_read_from_its_file_each_time(project: Path) -> None:
    secret = project / "secret"
    found = settings(project, {"HEADRACE_SASL_PASSWORD_FILE": "secret"})
    secret.write_text("first\n")
    assert resolve("production", found).get("sasl.password") == "first"
    secret.write_text("second\r\n")
    assert resolve("production", found).get("sasl.password") == "second"


def test_a_file_of_a_secret_is_relative_to_headrace_toml(project: Path) -> None:
    (project / "inner").mkdir()
    (project / "secret").write_text("from a file")
    edited(project, 'sasl.password = "in the file"', 'sasl.password.file = "secret"')
    assert resolve("production", settings(project / "inner")).get("sasl.password") == "from a file"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"SASL_SSL"\nsasl', '"TLS"\nsasl', "is 'TLS': write PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ('sasl.mechanism = "SCRAM-SHA-512"', "", "has no sasl.mechanism"),
        ('sasl.username = "jobs"', "", "has no sasl.username, which sasl.mechanism SCRAM-SHA-512 needs"),
        ('sasl.password = "in the file"', "", "HEADRACE_SASL_PASSWORD_FILE"),
        ('"ca.pem"', '"other.pem"', "ssl.ca.location .*: there is no file .*other.pem"),
        ('ssl.ca.location = "ca.pem"', 'ssl.key.location = "ca.pem"', "has no ssl.certificate.location"),
        ("sasl.username", "sasl.usrname", "did you mean sasl.username"),
        ("sasl.mechanism", "sasl.mechanisms", "use sasl.mechanism"),
        ('sasl.password = "in the file"', 'sasl.jaas.config = "x"', "use sasl.username and sasl.password"),
        ('"jobs"', "7", "must be text"),
        ("\nsasl.password = ", '\nsasl.password.file = "ca.pem"\n"sasl.password" = ', "has both|overwrite"),
    ],
)
def test_a_wrong_profile_is_refused_with_what_to_write(
    project: Path, before: str, after: str, problem: str
) -> None:
    with pytest.raises(Misuse, match=problem) as refusal:
        resolve("production", edited(project, before, after))
    assert "in the file" not in str(refusal.value)


def test_a_profile_that_does_not_exist_is_named_with_those_that_do(project: Path, tmp_path: Path) -> None:
    with pytest.raises(BadProfile, match=r"'prod' in this process: .* are: production, tokens"):
        resolve("prod", settings(project))
    with pytest.raises(BadProfile, match=r"no headrace\.toml was found"):
        resolve("prod", Settings.read(environment={}, folder=Path("/")))


@pytest.mark.parametrize("name", ["a b", "", "a/b", "ä"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misuse, match="not the name of a security profile"):
        settings(tmp_path).broker(f"{name}://b:1")


def test_a_secret_is_not_printed_and_does_not_leave_the_process(project: Path) -> None:
    found = settings(project, {"HEADRACE_SASL_PASSWORD": "in the environment"})
    security = resolve("production", found)
    assert "in the" not in f"{security!r} {security} {found!r}"
    assert security.redact("you sent 'in the environment'") == "you sent '***'"
    for leave in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="stay in their process"):
            leave(security)


def test_librdkafka_gets_the_options_of_the_profile(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROJECT", str(project))
    config = client_config("production://a:1,b:2", {"linger.ms": 5})
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert config["sasl.password"] == "in the file"
    assert config["ssl.ca.location"] == str(project / "ca.pem")
    assert config["linger.ms"] == 5
    assert client_config("a:1") == {"bootstrap.servers": "a:1"}


def test_librdkafka_gets_its_tokens_from_the_same_place_as_the_raw_client(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PROJECT", str(project))
    config = client_config("tokens://a:1")
    assert config["oauth_cb"]("") == ("a token", 9e9, "", {"logicalCluster": "lkc-1"})
    assert not [name for name in config if name.startswith("sasl.oauthbearer")]


def test_every_option_has_a_variable_of_its_own() -> None:
    assert OPTIONS["ssl.key.password.file"].variable == "HEADRACE_SSL_KEY_PASSWORD_FILE"
    assert len({option.variable for option in OPTIONS.values()}) == len(OPTIONS)


def test_every_client_of_librdkafka_is_created_with_its_one_configuration() -> None:
    source = Path(headrace.__file__).parent
    made = re.compile(r"\b(?:Producer|Consumer|AdminClient)\(\s*[{]|[\"']bootstrap\.servers[\"']")
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if made.search(file.read_text()) and "starter" not in file.parts
    }
    # The reader adds a callback to the configuration of the session; the redrive gets it from the session.
    assert found == {"client/bootstrap.py", "cli/reader.py", "streams/redrive.py"}


def test_a_profile_of_mutual_tls_needs_no_user(tmp_path: Path) -> None:
    (tmp_path / "me.pem").write_text("")
    environment = {"HEADRACE_SECURITY_PROTOCOL": "SSL", "HEADRACE_SSL_CERTIFICATE_LOCATION": "me.pem"}
    security = resolve("environment", settings(tmp_path, environment))
    assert isinstance(security, Security)
    assert (security.uses_tls, security.uses_sasl) == (True, False)
