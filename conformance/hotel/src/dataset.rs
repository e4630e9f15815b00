//! What the hotels are: 80 of them in and around San Francisco, and 501 users.
//!
//! Six hotels are real ones (`hotels.txt`), the others are made by formulas of their number. Both
//! are those of DeathStarBench's hotel reservation (`hotelReservation/cmd/*/db.go`), so that
//! answers can be compared with its; the sentences about the hotels are ours. Pure functions.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Hotels, numbered from 1.
pub const HOTELS: u32 = 80;

/// Users, numbered from 0.
pub const USERS: u32 = 501;

/// How often a user's number is repeated in the password.
const REPETITIONS: usize = 10;

/// Where a hotel is, in degrees.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// North of the equator.
    pub lat: f64,
    /// East of Greenwich.
    pub lon: f64,
}

/// What hotels are recommended by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Where it is.
    pub point: Point,
    /// The more, the better.
    pub rate: f64,
    /// The less, the better.
    pub price: f64,
}

/// What a room costs from one day to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub struct RatePlan {
    pub hotel_id: String,
    pub code: String,
    pub in_date: String,
    pub out_date: String,
    pub room_type: RoomType,
}

/// A kind of room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub struct RoomType {
    pub bookable_rate: f64,
    pub total_rate: f64,
    pub total_rate_inclusive: f64,
    pub code: String,
    pub room_description: String,
}

/// What a hotel says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub struct Profile {
    pub id: String,
    pub name: String,
    pub phone_number: String,
    pub description: String,
    pub address: Address,
}

/// Where letters go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub struct Address {
    pub street_number: String,
    pub street_name: String,
    pub city: String,
    pub state: String,
    pub country: String,
    pub postal_code: String,
    pub lat: f32,
    pub lon: f32,
}

/// A real hotel: name, phone, street's number and name, postal code, latitude and longitude, rate
/// and price of its recommendation, and what it says of itself.
type Real = [&'static str; 10];

/// In the order of their numbers.
fn real(number: u32) -> Option<Real> {
    let line = include_str!("hotels.txt")
        .lines()
        .nth(number as usize - 1)?;
    let mut fields = line.split(" | ");
    Some([(); 10].map(|()| fields.next().expect("a line has ten fields")))
}

fn float(field: &str) -> f64 {
    field.parse().expect("it is a number")
}

/// What the hotels that were made up cost, by their number modulo 5: without and with taxes.
const COSTS: [[f64; 2]; 5] = [
    [109.0, 123.17],
    [120.0, 140.0],
    [124.0, 144.0],
    [132.0, 158.0],
    [232.0, 258.0],
];

fn numbers() -> impl Iterator<Item = u32> {
    1..=HOTELS
}

fn costs(number: u32) -> [f64; 2] {
    COSTS[number as usize % COSTS.len()]
}

/// On a line to the north-east, the farther the higher the number.
fn made_up(number: u32) -> Point {
    let steps = f64::from(number) / 500.0;
    Point {
        lat: 37.7835 + steps * 3.0,
        lon: -122.41 + steps * 4.0,
    }
}

fn point(number: u32) -> Point {
    let Some([.., lat, lon, _, _, _]) = real(number) else {
        return made_up(number);
    };
    let [lat, lon] = [lat, lon].map(float);
    Point { lat, lon }
}

/// Where the hotels are, by their ids. The third has one position for geo, and one 220 m south of
/// it everywhere else.
pub fn points() -> impl Iterator<Item = (String, Point)> {
    numbers().map(|number| {
        let mut point = point(number);
        if number == 3 {
            point.lat = 37.7854;
        }
        (number.to_string(), point)
    })
}

/// What hotels are recommended by.
pub fn offers() -> impl Iterator<Item = (String, Offer)> {
    numbers().map(|number| {
        let [rate, price] = match real(number) {
            Some([.., rate, price, _]) => [rate, price].map(float),
            None if number % 3 == 0 => costs(number),
            None => [135.0, 179.0],
        };
        let point = point(number);
        (number.to_string(), Offer { point, rate, price })
    })
}

/// The plans of those hotels that have one: the first three, and every third of those that were
/// made up.
pub fn rate_plans() -> impl Iterator<Item = (String, RatePlan)> {
    let has_plan = |number: &u32| *number <= 3 || (*number > 6 && number.is_multiple_of(3));
    numbers().filter(has_plan).map(|number| {
        let out_date = match number {
            ..=3 => "2015-04-10",
            _ if number % 2 == 0 => "2015-04-17",
            _ => "2015-04-24",
        };
        let [rate, inclusive] = match number {
            1 | 3 => COSTS[0],
            2 => [139.0, 153.09],
            _ => costs(number),
        };
        let [code, description] = match number {
            2 => ["QN", "Queen sized bed"],
            _ => ["KNG", "King sized bed"],
        };
        let plan = RatePlan {
            hotel_id: number.to_string(),
            code: "RACK".to_owned(),
            in_date: "2015-04-09".to_owned(),
            out_date: out_date.to_owned(),
            room_type: RoomType {
                bookable_rate: rate,
                total_rate: rate,
                total_rate_inclusive: inclusive,
                code: code.to_owned(),
                room_description: description.to_owned(),
            },
        };
        (number.to_string(), plan)
    })
}

/// What the hotels say of themselves. Those that were made up are the sixth, but for their phones
/// and positions.
pub fn profiles() -> impl Iterator<Item = (String, Profile)> {
    numbers().map(|number| {
        let own = real(number);
        let hotel = own.or_else(|| real(6)).expect("there are six");
        let hotel = hotel.map(str::to_owned);
        let [
            name,
            phone,
            street_number,
            street_name,
            postal_code,
            lat,
            lon,
            _,
            _,
            description,
        ] = hotel;
        let (phone_number, lat, lon) = match own {
            Some(_) => (phone, float(&lat) as f32, float(&lon) as f32),
            None => {
                // In single precision, which rounds otherwise than the formula for geo.
                let steps = number as f32 / 500.0;
                let phone = format!("(415) 284-40{number}");
                (phone, 37.7835 + steps * 3.0, -122.41 + steps * 4.0)
            }
        };
        let address = Address {
            street_number,
            street_name,
            city: "San Francisco".to_owned(),
            state: "CA".to_owned(),
            country: "United States".to_owned(),
            postal_code,
            lat,
            lon,
        };
        let profile = Profile {
            id: number.to_string(),
            name,
            phone_number,
            description,
            address,
        };
        (number.to_string(), profile)
    })
}

/// Rooms of the hotels, by their ids.
pub fn rooms() -> impl Iterator<Item = (String, u32)> {
    numbers().map(|number| {
        let rooms = match number {
            ..=6 => 200,
            _ => [200, 300, 250][number as usize % 3],
        };
        (number.to_string(), rooms)
    })
}

/// A user's name: the digits of the number as ASCII, in hexadecimal.
pub fn username(number: u32) -> String {
    let digits = number.to_string();
    let digits: String = digits.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("Cornell_{digits}")
}

/// A user's password.
pub fn password(number: u32) -> String {
    number.to_string().repeat(REPETITIONS)
}

/// What is stored of a password.
pub fn digest(password: &str) -> String {
    let digest = Sha256::digest(password);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The users' names, and the digests of their passwords.
pub fn users() -> impl Iterator<Item = (String, String)> {
    (0..USERS).map(|number| (username(number), digest(&password(number))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T>(id: &str, all: impl Iterator<Item = (String, T)>) -> Option<T> {
        all.into_iter().find(|(of, _)| of == id).map(|(_, one)| one)
    }

    #[test]
    fn hotels_stand_on_a_line() {
        assert_eq!(points().count(), 80);
        let check = |id, lat, lon| assert_eq!(of(id, points()), Some(Point { lat, lon }));
        check("1", 37.7867, -122.4112);
        check("3", 37.7854, -122.4071);
        check(
            "7",
            37.7835 + 7.0 / 500.0 * 3.0,
            -122.41 + 7.0 / 500.0 * 4.0,
        );
        check(
            "80",
            37.7835 + 80.0 / 500.0 * 3.0,
            -122.41 + 80.0 / 500.0 * 4.0,
        );
    }

    #[test]
    fn rates_and_prices_depend_on_the_number() {
        let check = |id, rate, price| {
            let offer = of(id, offers()).map(|offer| [offer.rate, offer.price]);
            assert_eq!(offer, Some([rate, price]), "hotel {id}");
        };
        check("2", 139.0, 120.0);
        check("7", 135.0, 179.0);
        check("9", 232.0, 258.0);
        check("15", 109.0, 123.17);
        check("18", 132.0, 158.0);
        check("21", 120.0, 140.0);
        check("27", 124.0, 144.0);
    }

    #[test]
    fn a_third_of_the_hotels_has_plans() {
        assert_eq!(rate_plans().count(), 27);
        assert_eq!(of("6", rate_plans()), None);
        let nine = of("9", rate_plans()).map(|plan| (plan.out_date, plan.room_type.total_rate));
        assert_eq!(nine, Some(("2015-04-24".to_owned(), 232.0)));
        let two = of("2", rate_plans()).map(|plan| plan.room_type.code);
        assert_eq!(two.as_deref(), Some("QN"));
    }

    #[test]
    fn profiles_have_positions_in_single_precision() {
        let eighty = of("80", profiles()).map(|hotel| (hotel.phone_number, hotel.address.lat));
        let expected = ("(415) 284-4080".to_owned(), 37.7835f32 + 0.16f32 * 3.0);
        assert_eq!(eighty, Some(expected));
        let five = of("5", profiles()).map(|hotel| hotel.name);
        assert_eq!(five.as_deref(), Some("Phoenix Hotel"));
    }

    #[test]
    fn hotels_have_200_rooms_or_more() {
        let check = |id, expected| assert_eq!(of(id, rooms()), Some(expected), "hotel {id}");
        for (id, expected) in [("6", 200), ("7", 300), ("8", 250), ("9", 200), ("80", 250)] {
            check(id, expected);
        }
    }

    #[test]
    fn users_have_passwords_of_their_numbers() {
        assert_eq!(users().count(), 501);
        assert_eq!(username(42), "Cornell_3432");
        assert_eq!(password(42), "42424242424242424242");
        // As sha256sum(1) has it.
        let zero = "84d9c4b849506b6d8f8075a9000e7e0a254be71060ea889fad3c88395988f4fc";
        assert_eq!(of("Cornell_30", users()).as_deref(), Some(zero));
    }
}
