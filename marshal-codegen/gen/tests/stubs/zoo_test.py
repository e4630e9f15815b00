"""The Python stubs against the zoo: arguments are the directory of the stubs and zoo.json."""

import base64
import datetime
import json
import random
import sys
import unittest

sys.path.insert(0, sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as zoo:
    ZOO = json.load(zoo)
sys.argv[1:3] = []

import everything_tollgate as everything  # noqa: E402
import hotel_tollgate as hotel  # noqa: E402
import legacy_tollgate as legacy  # noqa: E402
import tollgate_block as tb  # noqa: E402


def message_class(full_name):
    package, _, name = full_name.partition(".")
    found = globals()[package]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def camel(name):
    head, *tail = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in tail)


def from_json(cls, value):
    """Protobuf's JSON mapping, as far as the zoo uses it."""
    if cls.__name__ == "Timestamp":
        time = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        return cls(seconds=int(time.timestamp()))
    fields = {camel(field.name): field for field in cls._LAYOUT.fields}
    fields["otherName"] = fields.get("renamed")  # Its json_name.
    message = cls()
    for name, item in value.items():
        field = fields[name]
        setattr(message, field.name, field_from_json(field, item))
    return message


def field_from_json(field, item):
    of = field.type() if field.type else None
    if field.entry:
        return {one_from_json(field.entry.key, None, key): one_from_json(field.kind, of, v) for key, v in item.items()}
    if field.many:
        return [one_from_json(field.kind, of, v) for v in item]
    return one_from_json(field.kind, of, item)


def one_from_json(kind, of, item):
    if kind is tb.MESSAGE:
        return from_json(of, item)
    if kind is tb.ENUM:
        return of(item) if isinstance(item, int) else enum_value(of, item)
    if kind is tb.STRING:
        return item
    if kind is tb.BYTES:
        return base64.b64decode(item)
    if kind is tb.BOOL:
        return item in (True, "true")
    if kind in (tb.FLOAT, tb.DOUBLE):
        return float(item)
    return int(item)


def enum_value(of, name):
    prefix = of.__name__.upper() + "_"
    return of[name[len(prefix):] if name.startswith(prefix) else name]


def single(message):
    """The same message with numbers rounded to 32 bits where the field has 32."""
    return type(message).from_block(message.to_block())


class Zoo(unittest.TestCase):
    def test_messages_are_written_as_reviewed(self):
        for animal in ZOO:
            with self.subTest(animal["name"]):
                message = from_json(message_class(animal["message"]), animal["json"])
                message.unknown_fields = bytes.fromhex(animal["unknown"])
                inline, extents = message.to_parts(animal["extent_min"] or tb.EXTENT_MIN)
                self.assertEqual(inline.hex(), animal["inline"])
                self.assertEqual([bytes(e).hex() for e in extents], animal["extents"])

    def test_images_are_read_as_the_messages_that_they_are(self):
        for animal in ZOO:
            with self.subTest(animal["name"]):
                cls = message_class(animal["message"])
                image = bytes.fromhex(animal["image"])
                expected = from_json(cls, animal["json"])
                expected.unknown_fields = bytes.fromhex(animal["unknown"])
                self.assertEqual(cls.from_block(image), single(expected))
                self.assertEqual(cls.from_block(bytearray(image)).to_block(), expected.to_block())
                self.assertEqual(repr(cls.view(image)), repr(single(expected)))

    def test_forged_blocks_are_read_without_an_exception(self):
        rng = random.Random(1)
        for animal in ZOO:
            cls = message_class(animal["message"])
            if cls is everything.Node:
                continue  # Corrupted parts may overlap, so a walk takes long.
            for _ in range(60):
                image = bytearray.fromhex(animal["image"])
                for _ in range(rng.randrange(6)):
                    image[rng.randrange(len(image))] = rng.choice((rng.randrange(256), rng.randrange(len(image)) % 256))
                image = image[: rng.choice((len(image), rng.randrange(len(image) + 1)))]
                with self.subTest(animal["name"], image=image.hex()):
                    repr(cls.view(image))


class Hotel(unittest.TestCase):
    def request(self):
        return hotel.ReserveRequest(
            customer_name="Ada", hotel_ids=["ritz", "savoy"], stay=hotel.Stay(in_date="2026-05-01"), room_count=3
        )

    def test_a_view_reads_in_place(self):
        block = self.request().to_block()
        view = hotel.ReserveRequest.view(block)
        self.assertEqual((view.customer_name, view.hotel_ids, view.room_count), ("Ada", ["ritz", "savoy"], 3))
        self.assertEqual((view.stay.in_date, view.stay.out_date, view.coupon), ("2026-05-01", "", None))
        self.assertEqual(view.to_owned(), self.request())
        payload = hotel.EchoMessage.view(hotel.EchoMessage(payload=b"bytes").to_block()).payload
        self.assertEqual((type(payload), payload.readonly, payload), (memoryview, True, b"bytes"))

    def test_values_that_do_not_fit_are_named(self):
        def refused(message, expected):
            with self.assertRaises(tb.BlockError) as caught:
                message.to_block()
            self.assertIn(expected, str(caught.exception))

        refused(hotel.ReserveRequest(room_count=-1), "hotel.ReserveRequest.room_count: -1 isn't an unsigned 32-bit number")
        refused(hotel.ReserveRequest(room_count="3"), "hotel.ReserveRequest.room_count: '3' isn't")
        refused(hotel.ReserveRequest(room_count=None), "there is no default for it")
        refused(hotel.ReserveRequest(customer_name=b"Ada"), "hotel.ReserveRequest.customer_name: b'Ada' isn't text")
        refused(hotel.ReserveRequest(customer_name="\ud800"), "isn't text")
        refused(hotel.ReserveRequest(stay=hotel.ReserveReply()), "it must be a Stay")
        refused(hotel.EchoMessage(payload="text"), "hotel.EchoMessage.payload: 'text' isn't bytes")
        refused(hotel.EchoMessage(payload=7), "isn't bytes")
        refused(everything.Scalars(f_float=1e300), "everything.Scalars.f_float: 1e+300 isn't a 32-bit float")
        refused(everything.Scalars(f_bool=2), "everything.Scalars.f_bool: 2 isn't a bool")
        refused(everything.Scalars(f_mood=2**31), "isn't a number of an enum")
        refused(everything.Maps(leaves={1: None}), "it must be a Leaf")
        refused(everything.Choices(text="", flag=True), "everything.Choices.first: text and flag are both set")

    def test_limits_are_kept(self):
        def nested(depth):
            node = everything.Node()
            for _ in range(depth - 1):
                node = everything.Node(next=node)
            return node

        self.assertEqual(everything.Node.from_block(nested(64).to_block()), nested(64))
        self.assertRaisesRegex(tb.BlockError, "nested deeper than 64", nested(65).to_block)
        maps = nested(64)
        inner = maps
        while inner.next:
            inner = inner.next
        inner.by_name = {"": everything.Node()}
        self.assertRaisesRegex(tb.BlockError, "nested deeper than 64", maps.to_block)
        most = tb.MAX_MESSAGE - hotel.EchoMessage._LAYOUT.size
        self.assertEqual(len(hotel.EchoMessage(payload=bytes(most)).to_block()), tb.MAX_MESSAGE)
        large = hotel.EchoMessage(payload=bytes(most + 1))
        self.assertRaisesRegex(tb.BlockError, "more than 16777216 bytes", large.to_block)
        self.assertRaisesRegex(tb.BlockError, "more than 16777216 bytes, extents included", large.to_parts)
        many = hotel.ReserveReply(hotel_ids=["x" * 20] * 70)
        self.assertEqual(len(many.to_parts(20)[1]), tb.MAX_EXTENTS)

    def test_enums_are_open(self):
        mood = everything.Mood(77)
        self.assertEqual((mood, mood.value, isinstance(mood, everything.Mood)), (77, 77, True))
        self.assertEqual(everything.Mood.BLEAK, -7)
        read = everything.Scalars.from_block(everything.Scalars(f_mood=everything.Mood.STERN).to_block())
        self.assertIs(read.f_mood, everything.Mood.STERN)
        self.assertIs(everything.Scalars().f_mood, everything.Mood.UNSPECIFIED)
        self.assertRaises(ValueError, everything.Mood, 2**31)

    def test_oneofs_tell_their_member(self):
        choices = everything.Choices(leaf=everything.Leaf(name="leaf"), mood=everything.Mood.CALM)
        self.assertEqual((choices.which("first"), choices.which("second")), ("leaf", "mood"))
        view = everything.Choices.view(choices.to_block())
        self.assertEqual((view.which("first"), view.leaf.name, view.text), ("leaf", "leaf", None))
        self.assertIsNone(everything.Choices.view(everything.Choices().to_block()).which("first"))

    def test_proto2_tells_what_is_set(self):
        record = legacy.Record(id=1, grade=legacy.Grade.ONE, owner=legacy.Owner(name="o"))
        record.part = legacy.Record.Part(label="l", piece=[legacy.Record.Part.Piece(size=1)])
        view = legacy.Record.view(record.to_block())
        self.assertEqual((view.id, view.name, view.part.piece[0].size), (1, None, 1))
        self.assertEqual(view.to_owned(), record)
        # The daemon enforces required fields.
        self.assertIsNone(legacy.Record.from_block(legacy.Record().to_block()).id)

    def test_services_say_what_the_daemon_is_told(self):
        service = hotel.Reservation
        method = service.method("CheckAvailability")
        self.assertEqual((method.index, method.full_name), (1, "hotel.Reservation/CheckAvailability"))
        self.assertEqual((method.request(), method.reply()), (hotel.AvailabilityRequest, hotel.AvailabilityReply))
        self.assertEqual((len(service.schema_hash), service.descriptor_set), (64, hotel.DESCRIPTOR_SET))
        self.assertTrue(everything.Everything.methods[1].server_streaming)
        self.assertRaises(KeyError, service.method, "Cancel")

    def test_a_layout_with_other_numbers_is_not_imported(self):
        numbers = hotel.Stay._LAYOUT
        field = numbers.fields[1]._replace(offset=12)
        for wrong in (
            {"size": 32},
            {"unknown": 20},
            {"presence_words": 1},
            {"fields": (numbers.fields[0], field)},
        ):
            changed = tb.Layout(**{**vars(numbers), **wrong})
            with self.assertRaises(ImportError):
                tb.layout(hotel.Stay, hotel.StayView, changed)
        self.assertIs(hotel.Stay._LAYOUT, numbers)


if __name__ == "__main__":
    unittest.main(verbosity=2)
